/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libcuda.so.1 of a simulated node: enough for a linked program to count the GPUs it may open.
 * Needs no description, so that it answers in every container.
 * Must not: compute anything.
 */
#include "description.h"

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101 };

static int count = -1;

EXPORT int cuInit(unsigned flags)
{
	if (flags)
		return INVALID_VALUE;
	int found = 0;
	if (!open_device("/dev/nvidiactl"))
		for (unsigned minor = 0; minor < MAX_GPUS; minor++)
			found += !open_minor(minor);
	if (!found)
		return NO_DEVICE;
	count = found;
	return SUCCESS;
}
EXPORT int cuDriverGetVersion(int *to)
{
	if (!to)
		return INVALID_VALUE;
	*to = CUDA_VERSION;
	return SUCCESS;
}
EXPORT int cuDeviceGetCount(int *to)
{
	if (!to)
		return INVALID_VALUE;
	if (count < 0)
		return NOT_INITIALIZED;
	*to = count;
	return SUCCESS;
}
EXPORT int cuDeviceGet(int *to, int ordinal)
{
	if (!to)
		return INVALID_VALUE;
	if (count < 0)
		return NOT_INITIALIZED;
	if (ordinal < 0 || ordinal >= count)
		return INVALID_DEVICE;
	*to = ordinal;
	return SUCCESS;
}
