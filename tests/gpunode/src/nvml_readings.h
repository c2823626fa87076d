/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of nvml.c that reads a GPU's sensors and counters, each a `reading NAME VALUE` of the description.
 * What a description leaves out is not supported, as on a GPU without that sensor.
 * Must not: be included by anything else.
 */
#ifndef GPUNODE_NVML_READINGS_H
#define GPUNODE_NVML_READINGS_H

struct memory { u64 total, free, used; };
struct memory_v2 { unsigned version; u64 total, reserved, free, used; };
struct process { unsigned pid; u64 memory; unsigned gi, ci; };
struct utilization { unsigned gpu, memory; };
struct field {
	unsigned id, scope;
	u64 time, latency;
	int type, code;
	u64 value;
};
struct attributes {
	unsigned multiprocessors, copy, decoder, encoder, jpeg, ofa, gi_slices, ci_slices;
	u64 memory_mib;
};

/* What comes before every answer about a whole GPU: the fault of this one, if it has any. */
static int ask(struct gpu *gpu)
{
	if (!users)
		return UNINITIALIZED;
	if (!gpu)
		return INVALID_ARGUMENT;
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
static int read_unsigned(struct gpu *gpu, enum reading what, unsigned *to)
{
	u64 value = 0;
	int code = to ? read_number(gpu, what, &value) : INVALID_ARGUMENT;
	if (!code)
		*to = (unsigned)value;
	return code;
}

EXPORT int nvmlDeviceGetTemperature(struct gpu *gpu, unsigned sensor, unsigned *to)
{
	return sensor ? INVALID_ARGUMENT : read_unsigned(gpu, TEMPERATURE, to);
}
EXPORT int nvmlDeviceGetPowerUsage(struct gpu *gpu, unsigned *to)
{
	return read_unsigned(gpu, POWER, to);
}
EXPORT int nvmlDeviceGetEnforcedPowerLimit(struct gpu *gpu, unsigned *to)
{
	return read_unsigned(gpu, POWER_LIMIT, to);
}
EXPORT int nvmlDeviceGetPcieReplayCounter(struct gpu *gpu, unsigned *to)
{
	return read_unsigned(gpu, PCIE_REPLAYS, to);
}
EXPORT int nvmlDeviceGetPersistenceMode(struct gpu *gpu, unsigned *to)
{
	int first = ask(gpu);
	return first ? first : give_number(to, gpu->persistence);
}
EXPORT int nvmlDeviceGetClockInfo(struct gpu *gpu, unsigned kind, unsigned *to)
{
	if (kind != 1 && kind != 2)
		return NOT_SUPPORTED;
	return read_unsigned(gpu, kind == 1 ? CLOCK_SM : CLOCK_MEMORY, to);
}
EXPORT int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilization *to)
{
	int first = to ? read_unsigned(gpu, UTILIZATION, &to->gpu) : INVALID_ARGUMENT;
	return first ? first : read_unsigned(gpu, MEMORY_UTILIZATION, &to->memory);
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(struct gpu *gpu, u64 *to)
{
	return to ? read_number(gpu, CLOCKS_EVENT, to) : INVALID_ARGUMENT;
}
/* Of the fields only what the driver wants done with the GPU (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION). */
EXPORT int nvmlDeviceGetFieldValues(struct gpu *gpu, int count, struct field *fields)
{
	u64 value = 0;
	int first = fields ? ask(gpu) : INVALID_ARGUMENT;
	for (int i = 0; !first && i < count; i++) {
		fields[i].code = fields[i].id == 230 ? read_number(gpu, RECOVERY_ACTION, &value) : NOT_SUPPORTED;
		fields[i].type = 1, fields[i].value = value;
	}
	return first;
}
EXPORT int nvmlDeviceGetTotalEccErrors(struct gpu *gpu, unsigned error, unsigned counter, u64 *to)
{
	if (!to || error > 1 || counter > 1)
		return INVALID_ARGUMENT;
	return read_number(gpu, (enum reading)(ECC_CORRECTED + error + 2 * counter), to);
}
/* Of a MIG device too, which has a part of its parent's; that of a divided GPU is for those who may watch MIG. */
EXPORT int nvmlDeviceGetMemoryInfo(struct gpu *gpu, struct memory *to)
{
	int first = gpu && gpu->parent ? OK : ask(gpu);
	if (!first && gpu->mig_enabled && open_capability("/proc/driver/nvidia/capabilities/mig/monitor"))
		return NO_PERMISSION;
	if (first || !to)
		return first ? first : INVALID_ARGUMENT;
	to->total = gpu->memory;
	to->used = gpu->has[MEMORY_USED] ? gpu->readings[MEMORY_USED] : 0;
	to->free = to->total - to->used;
	return OK;
}
/* The second version counts what the driver keeps for itself apart. */
EXPORT int nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *to)
{
	struct memory memory = {0, 0, 0};
	int code = to ? nvmlDeviceGetMemoryInfo(gpu, &memory) : INVALID_ARGUMENT;
	if (!code)
		to->total = memory.total, to->reserved = 0, to->free = memory.free, to->used = memory.used;
	return code;
}
/* How many there are; of each nothing is known. */
EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct gpu *gpu, unsigned *count, struct process *to)
{
	u64 there = 0;
	int code = count ? read_number(gpu, PROCESSES, &there) : INVALID_ARGUMENT;
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
EXPORT int nvmlDeviceGetAttributes_v2(struct gpu *mig, struct attributes *to)
{
	if (!users)
		return UNINITIALIZED;
	if (!mig || !to)
		return INVALID_ARGUMENT;
	if (!mig->parent)
		return NOT_SUPPORTED;
	memset(to, 0, sizeof *to);
	to->multiprocessors = mig->multiprocessors;
	to->gi_slices = mig->gi_slices, to->ci_slices = mig->ci_slices;
	to->copy = mig->ci_slices, to->decoder = mig->ci_slices;
	to->memory_mib = mig->memory >> 20;
	return OK;
}

#endif
