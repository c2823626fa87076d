/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the node's description as node.py renders it: one `key value` line each, a `gpu N` line
 * opens GPU number N (in the order of PCI addresses), a `mig GI CI` line a MIG device of that GPU.
 * Unknown keys are passed over, so that a newer description works with an older library.
 * Must not: open a device.
 */
#ifndef GPUNODE_DESCRIPTION_H
#define GPUNODE_DESCRIPTION_H
#include "sys.h"

#define DESCRIPTION_FILE "/proc/driver/gpunode/description"
enum { MAX_GPUS = 32, MAX_MIG = 64, MAX_DESCRIPTION = 65536 };

enum reading { MEMORY_USED, ECC_UNCORRECTED, RECOVERY_ACTION, PROCESSES, READINGS };
static const char *const reading_names[READINGS] = {
	"memory_used ", "ecc_uncorrected ", "recovery_action ", "processes "};

/*
 * A MIG device has a parent, and of the rest only uuid, model, memory and its own.
 * claims: the UUID that NVML gives in the place of its own; falls: lost after so many questions.
 */
struct gpu {
	char uuid[48], claims[48], model[96], bus_id[32], cuda_fault[48];
	struct gpu *parent;
	unsigned gi, ci;
	unsigned mig_enabled, lost, unlisted, hangs, falls, asked;
	unsigned minor, brand, capability_major, capability_minor, mig_capable, max_mig;
	unsigned pci_id, subsystem_id;
	u64 memory, readings[READINGS];
	char has[READINGS];
};

struct description {
	char driver[32];
	unsigned cuda, nvswitches, count, mig_count, hangs, errors, goes, leaves;
	struct gpu gpus[MAX_GPUS], mig[MAX_MIG];
};

static void read_reading(struct gpu *gpu, const char *line)
{
	for (unsigned i = 0; i < READINGS; i++) {
		const char *value = text_after(line, reading_names[i]);
		if (value)
			gpu->has[i] = 1, gpu->readings[i] = text_number(value, 10);
	}
}

#define NUMBER(field, base) {#field " ", __builtin_offsetof(struct gpu, field), base}
static const struct { const char *key; size_t at; int base; } numbers[] = {
	NUMBER(minor, 10), NUMBER(brand, 10), NUMBER(pci_id, 16), NUMBER(subsystem_id, 16), NUMBER(mig_capable, 10),
	NUMBER(max_mig, 10), NUMBER(mig_enabled, 10), NUMBER(capability_major, 10), NUMBER(capability_minor, 10),
};

static void read_gpu_line(struct gpu *gpu, const char *line)
{
	const char *value;
	if ((value = text_after(line, "reading ")))
		read_reading(gpu, value);
	else if ((value = text_after(line, "uuid ")))
		text_copy(gpu->uuid, sizeof gpu->uuid, value);
	else if ((value = text_after(line, "model ")))
		text_copy(gpu->model, sizeof gpu->model, value);
	else if ((value = text_after(line, "bus_id ")))
		text_copy(gpu->bus_id, sizeof gpu->bus_id, value);
	else if ((value = text_after(line, "memory ")))
		gpu->memory = text_number(value, 10);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
		if ((value = text_after(line, numbers[i].key)))
			*(unsigned *)((char *)gpu + numbers[i].at) = (unsigned)text_number(value, numbers[i].base);
}

static struct gpu *add_mig(struct description *node, const char *numbers)
{
	struct gpu *mig = &node->mig[node->mig_count++];
	memset(mig, 0, sizeof *mig);
	mig->parent = &node->gpus[node->count - 1];
	mig->gi = (unsigned)text_number(numbers, 10);
	while (*numbers && *numbers++ != ' ')
		;
	mig->ci = (unsigned)text_number(numbers, 10);
	return mig;
}

/* `fault N WHAT` of the GPU with this number: lost, unlisted, hangs, falls AFTER, claims UUID, cuda CALL WORD, or a reading. */
static void read_fault(struct description *node, const char *line)
{
	struct gpu *gpu = &node->gpus[text_number(line, 10) % MAX_GPUS];
	const char *value;
	while (*line && *line++ != ' ')
		;
	if (text_after(line, "lost"))
		gpu->lost = 1;
	else if (text_after(line, "unlisted"))
		gpu->unlisted = 1;
	else if (text_after(line, "hangs"))
		gpu->hangs = 1;
	else if ((value = text_after(line, "falls ")))
		gpu->falls = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "claims ")))
		text_copy(gpu->claims, sizeof gpu->claims, value);
	else if ((value = text_after(line, "cuda ")))
		text_copy(gpu->cuda_fault, sizeof gpu->cuda_fault, value);
	else
		read_reading(gpu, line);
}

/* `current` is what the last `gpu` or `mig` line opened. */
static struct gpu *read_line(struct description *node, struct gpu *current, const char *line)
{
	const char *value;
	if (text_after(line, "gpu ") && node->count < MAX_GPUS) {
		memset(&node->gpus[node->count], 0, sizeof node->gpus[0]);
		return &node->gpus[node->count++];
	}
	if ((value = text_after(line, "mig ")) && node->count && node->mig_count < MAX_MIG)
		return add_mig(node, value);
	if ((value = text_after(line, "driver ")))
		text_copy(node->driver, sizeof node->driver, value);
	else if ((value = text_after(line, "cuda ")))
		node->cuda = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "nvswitches ")))
		node->nvswitches = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "nvml ")))
		node->hangs |= *value == 'h', node->errors |= *value == 'e', node->goes |= *value == 'g';
	else if ((value = text_after(line, "leaves ")))
		node->leaves = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "fault ")))
		read_fault(node, value);
	else if (current)
		read_gpu_line(current, line);
	return current;
}

/* 0, or the negative errno of the file. */
static UNUSED long read_description(struct description *node)
{
	static char text[MAX_DESCRIPTION];
	long got = read_file(AT_FDCWD, DESCRIPTION_FILE, text, sizeof text);
	char *line = text;
	struct gpu *current = NULL;
	memset(node, 0, sizeof *node);
	for (char *p = text; got > 0 && *p; p++)
		if (*p == '\n') {
			*p = 0;
			current = read_line(node, current, line);
			line = p + 1;
		}
	return got < 0 ? got : 0;
}

/* A node without a driver behind it tells allowed (ENXIO) from denied (EPERM). */
static UNUSED long open_device_for(const char *path, int access)
{
	long fd = sys_open(path, access | O_NONBLOCK);
	if (fd >= 0)
		sys_close((int)fd);
	return fd >= 0 || fd == -ENXIO || fd == -ENODEV ? 0 : fd;
}
static UNUSED long open_device(const char *path) { return open_device_for(path, O_RDWR); }
static UNUSED long open_minor(unsigned minor)
{
	char path[32] = "/dev/nvidia";
	append_number(path, sizeof path, minor);
	return open_device(path);
}

/* The capability whose minor the kernel gives in that file; as the real library, only to read. */
static UNUSED long open_capability(const char *file)
{
	char text[256], path[48] = "/dev/nvidia-caps/nvidia-cap";
	long got = read_file(AT_FDCWD, file, text, sizeof text);
	const char *minor = got > 0 ? text_after(text, "DeviceFileMinor: ") : NULL;
	if (!minor)
		return got < 0 ? got : -ENOENT;
	append_number(path, sizeof path, text_number(minor, 10));
	return open_device_for(path, O_RDONLY);
}
/* Both its GPU instance's capability and its own. */
static UNUSED long open_mig(const struct gpu *mig)
{
	char path[128] = "/proc/driver/nvidia/capabilities/gpu", file[128];
	append_number(path, sizeof path, mig->parent->minor);
	text_append(path, sizeof path, "/mig/gi");
	append_number(path, sizeof path, mig->gi);
	text_copy(file, sizeof file, path);
	text_append(file, sizeof file, "/access");
	long result = open_capability(file);
	text_append(path, sizeof path, "/ci");
	append_number(path, sizeof path, mig->ci);
	text_append(path, sizeof path, "/access");
	return result ? result : open_capability(path);
}
#endif
