/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda.so.1 of a simulated node: a linked program counts the GPUs that it may open, and one that loads the kernel
 * `vector_add` gets its sums, made on the CPU (cuda_compute.h).
 * Without CUDA_VISIBLE_DEVICES it needs no description, so that it answers in every container.
 * Must not: compute anything else, or understand PTX.
 */
#include "description.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
       INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500, LAUNCH_FAILED = 719 };

/* What CUDA shows: a GPU, and of it a MIG device, where the description says which. */
struct shown { unsigned minor; const struct gpu *is; };
static struct shown devices[MAX_GPUS];
static int count = -1;
static struct description node;

/*
 * The fault of a GPU in the description: `fault N cuda CALL WORD`.  WORD is the number that the call returns, or `hang`,
 * `crash`, or, of cuLaunchKernel and cuDeviceGetUuid, `wrong`.
 */
static int fault(const char *call, int device)
{
	const struct gpu *gpu = device >= 0 && device < count ? devices[device].is : NULL;
	const char *word = gpu ? text_after(gpu->parent ? gpu->parent->cuda_fault : gpu->cuda_fault, call) : NULL;
	if (!word || *word++ != ' ')
		return SUCCESS;
	while (*word == 'h')
		sys_sleep();
	if (*word == 'c')
		__builtin_trap();
	return *word == 'w' ? -1 : (int)text_number(word, 10);
}

static void show(unsigned minor, const struct gpu *is)
{
	if (count < MAX_GPUS)
		devices[count++] = (struct shown){minor, is};
}

/* One word of CUDA_VISIBLE_DEVICES: a UUID, or the beginning of one, or a number.  Whether there is such a device. */
static int show_named(const char *word)
{
	int before = count;
	for (unsigned i = 0; i < node.count && *word; i++) {
		const struct gpu *gpu = &node.gpus[i];
		int is_number = *word >= '0' && *word <= '9' && text_number(word, 10) == i;
		if ((is_number || text_after(gpu->uuid, word)) && !open_minor(gpu->minor))
			show(gpu->minor, gpu);
	}
	for (unsigned i = 0; i < node.mig_count && *word; i++)
		if (text_after(node.mig[i].uuid, word) && !open_minor(node.mig[i].parent->minor) &&
		    !open_mig(&node.mig[i]))
			show(node.mig[i].parent->minor, &node.mig[i]);
	return count > before;
}

/* As CUDA's: what comes behind a word that names nothing is not looked at. */
static void show_all_named(char *words)
{
	char *word = words;
	for (char *p = words;; p++) {
		char end = *p;
		if (end && end != ',')
			continue;
		*p = 0;
		if (!show_named(word) || !end)
			return;
		word = p + 1;
	}
}

/* The value of a variable of this process, in `room`; NULL where it has none. */
static char *variable(const char *name, char *room, size_t size)
{
	static char all[65536];
	long got = read_file(AT_FDCWD, "/proc/self/environ", all, sizeof all);
	for (const char *p = all; got > 0 && p < all + got; p += text_length(p) + 1) {
		const char *value = text_after(p, name);
		if (value && *value == '=') {
			text_copy(room, size, value + 1);
			return room;
		}
	}
	return NULL;
}

EXPORT int cuInit(unsigned flags)
{
	static char words[4096];
	if (flags)
		return INVALID_VALUE;
	read_description(&node);
	count = 0;
	if (!open_device("/dev/nvidiactl")) {
		if (variable("CUDA_VISIBLE_DEVICES", words, sizeof words))
			show_all_named(words);
		else
			for (unsigned minor = 0; minor < MAX_GPUS; minor++)
				if (!open_minor(minor))
					show(minor, NULL);
	}
	if (!count) {
		count = -1;
		return NO_DEVICE;
	}
	return fault("cuInit", 0);
}
EXPORT int cuDriverGetVersion(int *to)
{
	*to = CUDA_VERSION;
	return SUCCESS;
}
EXPORT int cuDeviceGetCount(int *to)
{
	if (count < 0)
		return NOT_INITIALIZED;
	*to = count;
	return SUCCESS;
}
EXPORT int cuDeviceGet(int *to, int ordinal)
{
	if (ordinal < 0 || ordinal >= count)
		return count < 0 ? NOT_INITIALIZED : INVALID_DEVICE;
	*to = ordinal;
	return fault("cuDeviceGet", ordinal);
}
#include "cuda_compute.h"
