/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of nvml.c about what a GPU is divided into and what it is joined to: MIG devices, NVLink
 * and its fabric. As the real one, it shows only MIG devices whose capabilities may be opened.
 * Must not: be included by anything else.
 */
#ifndef GPUNODE_NVML_MIG_H
#define GPUNODE_NVML_MIG_H

struct attributes {
	unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, gi_slices, ci_slices;
	u64 memory_mib;
};

enum { NVLINKS = 18, REMOTE_IS_SWITCH = 2, FABRIC_COMPLETED = 3, CLUSTER_UUID = 16 };
struct fabric {
	unsigned char cluster[CLUSTER_UUID];
	unsigned status, clique;
	unsigned char state;
};
struct fabric_v2 {
	unsigned version;
	unsigned char cluster[CLUSTER_UUID];
	unsigned status, clique;
	unsigned char state;
	unsigned health;
};
enum { FABRIC_V2 = 2 << 24 | sizeof(struct fabric_v2) };

EXPORT int nvmlDeviceGetMigMode(struct gpu *gpu, unsigned *current, unsigned *pending)
{
	if (!gpu)
		return INVALID_ARGUMENT;
	if (gpu->parent || !gpu->mig_capable)
		return NOT_SUPPORTED;
	int first = give_number(current, gpu->mig_enabled);
	return first ? first : give_number(pending, gpu->mig_enabled);
}
EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct gpu *gpu, unsigned *to)
{
	return give_gpu_number(gpu, to, gpu ? gpu->max_mig : 0);
}
EXPORT int nvmlDeviceIsMigDeviceHandle(struct gpu *gpu, unsigned *to)
{
	return gpu ? give_number(to, gpu->parent != NULL) : INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct gpu *gpu, unsigned index, struct gpu **to)
{
	if (!users)
		return UNINITIALIZED;
	if (!gpu || !to || gpu->parent)
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
EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct gpu *mig, struct gpu **to)
{
	if (!users)
		return UNINITIALIZED;
	if (!mig || !to || !mig->parent)
		return INVALID_ARGUMENT;
	*to = mig->parent;
	return OK;
}

static int give_mig_number(struct gpu *mig, unsigned *to, unsigned value)
{
	if (!mig)
		return INVALID_ARGUMENT;
	return mig->parent ? give_number(to, value) : NOT_SUPPORTED;
}
EXPORT int nvmlDeviceGetGpuInstanceId(struct gpu *mig, unsigned *to)
{
	return give_mig_number(mig, to, mig ? mig->gi : 0);
}
EXPORT int nvmlDeviceGetComputeInstanceId(struct gpu *mig, unsigned *to)
{
	return give_mig_number(mig, to, mig ? mig->ci : 0);
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
	to->memory_mib = mig->memory >> 20;
	return OK;
}
EXPORT int nvmlDeviceGetAttributes(struct gpu *mig, struct attributes *to)
{
	return nvmlDeviceGetAttributes_v2(mig, to);
}

/* GPUs are joined where there is a switch to join them, and then by all their links. */
EXPORT int nvmlDeviceGetNvLinkState(struct gpu *gpu, unsigned link, unsigned *to)
{
	if (!node.nvswitches)
		return gpu ? NOT_SUPPORTED : INVALID_ARGUMENT;
	return link < NVLINKS ? give_gpu_number(gpu, to, 1) : INVALID_ARGUMENT;
}
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(struct gpu *gpu, unsigned link, unsigned *to)
{
	if (!node.nvswitches)
		return gpu ? NOT_SUPPORTED : INVALID_ARGUMENT;
	return link < NVLINKS ? give_gpu_number(gpu, to, REMOTE_IS_SWITCH) : INVALID_ARGUMENT;
}
/* One machine alone: no cluster, clique 0; without a switch there is no fabric at all. */
EXPORT int nvmlDeviceGetGpuFabricInfo(struct gpu *gpu, struct fabric *to)
{
	if (!users)
		return UNINITIALIZED;
	if (!gpu || !to)
		return INVALID_ARGUMENT;
	if (gpu->parent)
		return NOT_SUPPORTED;
	memset(to, 0, sizeof *to);
	to->state = node.nvswitches ? FABRIC_COMPLETED : 0;
	return OK;
}
EXPORT int nvmlDeviceGetGpuFabricInfoV(struct gpu *gpu, struct fabric_v2 *to)
{
	struct fabric answer;
	int result = nvmlDeviceGetGpuFabricInfo(gpu, to ? &answer : NULL);
	if (result)
		return result;
	if (to->version != FABRIC_V2)
		return INVALID_ARGUMENT;
	memset(to, 0, sizeof *to);
	to->version = FABRIC_V2;
	to->state = answer.state;
	return OK;
}
#endif
