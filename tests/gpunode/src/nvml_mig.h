/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of nvml.c about MIG devices.  As the real one, it shows only those whose capabilities may be opened.
 */
#ifndef GPUNODE_NVML_MIG_H
#define GPUNODE_NVML_MIG_H

EXPORT int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned *current, unsigned *pending)
{
	if (gpu->parent || !gpu->mig_capable)
		return NOT_SUPPORTED;
	int first = give_number(current, gpu->mig_enabled);
	return first ? first : give_number(pending, gpu->mig_enabled);
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct gpu *gpu, unsigned *to)
{
	return give_gpu_number(gpu, to, gpu->max_mig);
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *gpu, unsigned index, struct gpu **to)
{
	if (!users)
		return UNINITIALIZED;
	if (gpu->parent)
		return INVALID_ARGUMENT;
	if (!gpu->mig_capable)
		return NOT_SUPPORTED;
	if (index >= gpu->max_mig)
		return INVALID_ARGUMENT;
	for (unsigned i = 0; i < visible_mig_count; i++)
		if (visible_mig[i]->parent == gpu && !index--) {
			*to = visible_mig[i];
			return OK;
		}
	return NOT_FOUND;
}

static int give_mig_number(struct gpu *mig, unsigned *to, unsigned value)
{
	return mig->parent ? give_number(to, value) : NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetGpuInstanceId(struct gpu *mig, unsigned *to)
{
	return give_mig_number(mig, to, mig->gi);
}
EXPORT int nvmlDeviceGetComputeInstanceId(struct gpu *mig, unsigned *to)
{
	return give_mig_number(mig, to, mig->ci);
}

#endif
