/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of nvml.c that tells how a GPU is and what is done with it, each a `reading NAME VALUE` of the description.
 * What a description leaves out is not supported, as on a GPU without it.
 */
#ifndef GPUNODE_NVML_READINGS_H
#define GPUNODE_NVML_READINGS_H

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct process { unsigned pid; u64 memory; unsigned gi, ci; };
struct field {
	unsigned id, scope;
	u64 time, latency;
	int type, code;
	u64 value;
};

/* What comes before every answer about a whole GPU: the fault of this one, if it has any. */
static int ask(struct gpu *gpu)
{
	if (!users)
		return UNINITIALIZED;
	if (gpu->parent)
		return NOT_SUPPORTED;
	while (gpu->hangs)
		sys_sleep();
	if (node.leaves && __atomic_add_fetch(&asked, 1, __ATOMIC_RELAXED) > node.leaves)
		return UNINITIALIZED;
	if (gpu->falls && __atomic_add_fetch(&gpu->asked, 1, __ATOMIC_RELAXED) > gpu->falls)
		return GPU_IS_LOST;
	return gpu->lost ? GPU_IS_LOST : OK;
}
static int read_number(struct gpu *gpu, enum reading what, u64 *value)
{
	int first = ask(gpu);
	if (first)
		return first;
	if (!gpu->has[what])
		return NOT_SUPPORTED;
	*value = gpu->readings[what];
	return OK;
}
/* Of the fields only what the driver wants done with the GPU (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION). */
EXPORT int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct field *fields)
{
	u64 value = 0;
	int first = ask(gpu);
	for (int i = 0; !first && i < count; i++) {
		fields[i].code = fields[i].id == 230 ? read_number(gpu, RECOVERY_ACTION, &value) : NOT_SUPPORTED;
		fields[i].type = 1, fields[i].value = value;
	}
	return first;
}
/* Only the uncorrectable ones since the last reset. */
EXPORT int nvmlDeviceGetTotalEccErrors(struct gpu *gpu, unsigned error, unsigned counter, u64 *to)
{
	return error && !counter ? read_number(gpu, ECC_UNCORRECTED, to) : NOT_SUPPORTED;
}
/* Of a MIG device too, which has a part of its parent's; that of a divided GPU is for those who may watch MIG. */
EXPORT int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *to)
{
	int first = gpu->parent ? OK : ask(gpu);
	if (!first && gpu->mig_enabled && open_capability("/proc/driver/nvidia/capabilities/mig/monitor"))
		return NO_PERMISSION;
	if (first)
		return first;
	to->total = gpu->memory;
	to->used = gpu->has[MEMORY_USED] ? gpu->readings[MEMORY_USED] : 0;
	to->free = to->total - to->used;
	return OK;
}
/* The second version counts what the driver keeps for itself apart. */
EXPORT int nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *to)
{
	struct memory memory = {0, 0, 0};
	int code = nvmlDeviceGetMemoryInfo(gpu, &memory);
	if (!code)
		to->total = memory.total, to->reserved = 0, to->free = memory.free, to->used = memory.used;
	return code;
}
/* How many there are; of each nothing is known. */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *count, struct process *to)
{
	u64 there = 0;
	int code = read_number(gpu, PROCESSES, &there);
	if (code)
		return code;
	code = there && (!to || *count < there) ? INSUFFICIENT_SIZE : OK;
	if (!code && there)
		memset(to, 0, there * sizeof *to);
	*count = (unsigned)there;
	return code;
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(struct gpu *gpu, unsigned *count, struct process *to)
{
	(void)to;
	int first = ask(gpu);
	return first ? first : give_number(count, 0);
}

#endif
