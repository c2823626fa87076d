/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of nvml.c about a GPU's use and health, each a `reading NAME VALUE` of the description.
 * Must not: be included by anything else.
 */
#ifndef GPUNODE_NVML_READINGS_H
#define GPUNODE_NVML_READINGS_H

struct utilization { unsigned gpu, memory; };
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
	if (!first)
		*value = gpu->readings[what];
	return first;
}

EXPORT int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilization *to)
{
	u64 value = 0;
	int code = to ? read_number(gpu, UTILIZATION, &value) : INVALID_ARGUMENT;
	if (!code)
		to->gpu = (unsigned)value, to->memory = 0;
	return code;
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
/* Of uncorrected errors since the driver was loaded alone. */
EXPORT int nvmlDeviceGetTotalEccErrors(struct gpu *gpu, unsigned error, unsigned counter, u64 *to)
{
	if (!to || error != 1 || counter)
		return INVALID_ARGUMENT;
	return read_number(gpu, ECC_UNCORRECTED, to);
}

#endif
