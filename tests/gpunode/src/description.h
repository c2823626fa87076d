/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads the node's description as node.py renders it: one `key value` line each, a `gpu N` line
 * opens GPU number N (in the order of PCI addresses). Unknown keys are passed over, so that a newer
 * description (MIG, say) works with an older library.
 * Must not: open a device.
 */
#ifndef GPUNODE_DESCRIPTION_H
#define GPUNODE_DESCRIPTION_H
#include "sys.h"

#define DESCRIPTION_FILE "/proc/driver/gpunode/description"
enum { MAX_GPUS = 32, MAX_DESCRIPTION = 32768 };

struct gpu {
	char uuid[48], model[96], bus_id[32], serial[24];
	unsigned minor, brand, major_capability, minor_capability, mig_capable, max_mig;
	unsigned pci_id, subsystem_id, persistence;
	u64 memory;
};

struct description {
	char driver[32];
	unsigned cuda, count;
	struct gpu gpus[MAX_GPUS];
};

static void read_gpu_line(struct gpu *gpu, const char *line)
{
	const char *value;
	if ((value = text_after(line, "uuid ")))
		text_copy(gpu->uuid, sizeof gpu->uuid, value);
	else if ((value = text_after(line, "model ")))
		text_copy(gpu->model, sizeof gpu->model, value);
	else if ((value = text_after(line, "bus_id ")))
		text_copy(gpu->bus_id, sizeof gpu->bus_id, value);
	else if ((value = text_after(line, "serial ")))
		text_copy(gpu->serial, sizeof gpu->serial, value);
	else if ((value = text_after(line, "minor ")))
		gpu->minor = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "brand ")))
		gpu->brand = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "memory ")))
		gpu->memory = text_number(value, 10);
	else if ((value = text_after(line, "pci_id ")))
		gpu->pci_id = (unsigned)text_number(value, 16);
	else if ((value = text_after(line, "subsystem_id ")))
		gpu->subsystem_id = (unsigned)text_number(value, 16);
	else if ((value = text_after(line, "persistence ")))
		gpu->persistence = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "mig_capable ")))
		gpu->mig_capable = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "max_mig ")))
		gpu->max_mig = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "capability_major ")))
		gpu->major_capability = (unsigned)text_number(value, 10);
	else if ((value = text_after(line, "capability_minor ")))
		gpu->minor_capability = (unsigned)text_number(value, 10);
}

static void read_line(struct description *node, const char *line)
{
	const char *value;
	if ((value = text_after(line, "driver ")))
		text_copy(node->driver, sizeof node->driver, value);
	else if ((value = text_after(line, "cuda ")))
		node->cuda = (unsigned)text_number(value, 10);
	else if (text_after(line, "gpu ") && node->count < MAX_GPUS)
		memset(&node->gpus[node->count++], 0, sizeof node->gpus[0]);
	else if (node->count)
		read_gpu_line(&node->gpus[node->count - 1], line);
}

/* 0, or the negative errno of the file. */
static UNUSED long read_description(struct description *node)
{
	static char text[MAX_DESCRIPTION];
	long got = read_file(AT_FDCWD, DESCRIPTION_FILE, text, sizeof text);
	char *line = text;
	memset(node, 0, sizeof *node);
	for (char *p = text; got > 0 && *p; p++)
		if (*p == '\n') {
			*p = 0;
			read_line(node, line);
			line = p + 1;
		}
	return got < 0 ? got : 0;
}

/* A node without a driver behind it tells allowed (ENXIO) from denied (EPERM). */
static UNUSED long open_device(const char *path)
{
	long fd = sys_open(path, O_RDWR | O_NONBLOCK);
	if (fd >= 0)
		sys_close((int)fd);
	return fd >= 0 || fd == -ENXIO || fd == -ENODEV ? 0 : fd;
}
static UNUSED long open_minor(unsigned minor)
{
	char path[32] = "/dev/nvidia";
	append_number(path, sizeof path, minor);
	return open_device(path);
}
#endif
