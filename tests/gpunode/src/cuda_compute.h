/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of cuda.c that computes: memory that is the process's own, one module with the kernel `vector_add`, whose
 * sums the CPU makes for as many threads as the launch has.
 */
#ifndef GPUNODE_CUDA_COMPUTE_H
#define GPUNODE_CUDA_COMPUTE_H

#define KERNEL "vector_add"
enum { MAX_PTX = 1 << 16, PAGE = 256 };

/* The memory of the GPU: given away piece by piece, and all of it again once every piece is back. */
static char memory[4 << 20] __attribute__((aligned(PAGE)));
static size_t used;
static int pieces, current = -1;
static char is_loaded;

static const char *const errors[][2] = {
	{"0", "CUDA_SUCCESS\0no error"},
	{"1", "CUDA_ERROR_INVALID_VALUE\0invalid argument"},
	{"2", "CUDA_ERROR_OUT_OF_MEMORY\0out of memory"},
	{"46", "CUDA_ERROR_DEVICE_UNAVAILABLE\0CUDA-capable device(s) is/are busy or unavailable"},
	{"100", "CUDA_ERROR_NO_DEVICE\0no CUDA-capable device is detected"},
	{"101", "CUDA_ERROR_INVALID_DEVICE\0invalid device ordinal"},
	{"200", "CUDA_ERROR_INVALID_IMAGE\0device kernel image is invalid"},
	{"201", "CUDA_ERROR_INVALID_CONTEXT\0invalid device context"},
	{"221", "CUDA_ERROR_JIT_COMPILER_NOT_FOUND\0PTX JIT compiler library not found"},
	{"500", "CUDA_ERROR_NOT_FOUND\0named symbol not found"},
	{"719", "CUDA_ERROR_LAUNCH_FAILED\0unspecified launch failure"},
	{"802", "CUDA_ERROR_SYSTEM_NOT_READY\0system not yet initialized"},
	{"999", "CUDA_ERROR_UNKNOWN\0unknown error"},
};
static const char *error(int code)
{
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (text_number(errors[i][0], 10) == (u64)code)
			return errors[i][1];
	return NULL;
}
EXPORT int cuGetErrorName(int code, const char **to)
{
	*to = error(code);
	return *to ? SUCCESS : INVALID_VALUE;
}
EXPORT int cuGetErrorString(int code, const char **to)
{
	const char *name = error(code);
	*to = name ? name + text_length(name) + 1 : NULL;
	return name ? SUCCESS : INVALID_VALUE;
}

EXPORT int cuDeviceGetName(char *to, int room, int device)
{
	if (device < 0 || device >= count)
		return INVALID_DEVICE;
	text_copy(to, (size_t)room, devices[device].is ? devices[device].is->model : "simulated");
	return SUCCESS;
}
static void write_uuid(unsigned char *to, const char *digits)
{
	for (int written = 0; *digits && written < 32; digits++) {
		if (*digits == '-')
			continue;
		char digit[2] = {*digits, 0};
		u64 value = text_number(digit, 16);
		to[written / 2] = (unsigned char)(written % 2 ? to[written / 2] | value : value << 4);
		written++;
	}
}
EXPORT int cuDeviceGetUuid_v2(unsigned char *to, int device)
{
	if (device < 0 || device >= count)
		return INVALID_DEVICE;
	memset(to, 0, 16);
	if (devices[device].is)
		write_uuid(to, devices[device].is->uuid + 4);
	/* The fault: another GPU answers in its place. */
	if (fault("cuDeviceGetUuid", 0) < 0)
		to[15] ^= 1;
	return SUCCESS;
}

/* The context of a device is the place of its number. */
EXPORT int cuDevicePrimaryCtxRetain(void **to, int device)
{
	if (device < 0 || device >= count)
		return INVALID_DEVICE;
	*to = &devices[device];
	return fault("cuDevicePrimaryCtxRetain", device);
}
EXPORT int cuCtxSetCurrent(void *context)
{
	current = context ? (int)((struct shown *)context - devices) : -1;
	return SUCCESS;
}
EXPORT int cuCtxSynchronize(void)
{
	return current < 0 ? INVALID_CONTEXT : fault("cuCtxSynchronize", current);
}

EXPORT int cuMemAlloc_v2(u64 *to, size_t size)
{
	int failed = fault("cuMemAlloc", current);
	if (current < 0 || failed)
		return current < 0 ? INVALID_CONTEXT : failed;
	size = (size + PAGE - 1) / PAGE * PAGE;
	if (size > sizeof memory - used)
		return OUT_OF_MEMORY;
	*to = (u64)(memory + used);
	used += size;
	pieces++;
	return SUCCESS;
}
EXPORT int cuMemFree_v2(u64 at)
{
	(void)at;
	if (!--pieces)
		used = 0;
	return SUCCESS;
}
static int lies_in_memory(u64 at, size_t size)
{
	u64 begin = (u64)memory;
	return at >= begin && at - begin <= used && size <= used - (at - begin);
}
EXPORT int cuMemcpyHtoD_v2(u64 to, const void *from, size_t size)
{
	if (!lies_in_memory(to, size))
		return INVALID_VALUE;
	memcpy((void *)to, from, size);
	return fault("cuMemcpyHtoD", current);
}
EXPORT int cuMemcpyDtoH_v2(void *to, u64 from, size_t size)
{
	if (!lies_in_memory(from, size))
		return INVALID_VALUE;
	memcpy(to, (const void *)from, size);
	return fault("cuMemcpyDtoH", current);
}

EXPORT int cuModuleLoadData(void **to, const char *image)
{
	int failed = fault("cuModuleLoadData", current);
	if (current < 0 || failed)
		return current < 0 ? INVALID_CONTEXT : failed;
	is_loaded = 0;
	for (size_t i = 0; i < MAX_PTX && image[i]; i++)
		if (text_after(image + i, ".entry " KERNEL "("))
			is_loaded = 1;
	*to = &is_loaded;
	return is_loaded ? SUCCESS : INVALID_IMAGE;
}
EXPORT int cuModuleGetFunction(void **to, void *module, const char *name)
{
	if (module != &is_loaded || !is_loaded || text_compare(name, KERNEL))
		return NOT_FOUND;
	*to = &is_loaded;
	return SUCCESS;
}
EXPORT int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned threads_y,
			  unsigned threads_z, unsigned shared, void *stream, void **parameters, void **extra)
{
	int failed = fault("cuLaunchKernel", current);
	if (failed > 0)
		return failed;
	if (function != &is_loaded || shared || stream || extra || !parameters || !x || !threads || threads > 1024 ||
	    y != 1 || z != 1 || threads_y != 1 || threads_z != 1)
		return INVALID_VALUE;
	u64 a = *(u64 *)parameters[0], b = *(u64 *)parameters[1], sum = *(u64 *)parameters[2];
	u64 elements = (u64)x * threads;
	size_t size = elements * sizeof(float);
	if (!lies_in_memory(a, size) || !lies_in_memory(b, size) || !lies_in_memory(sum, size))
		return LAUNCH_FAILED;
	for (u64 i = 0; i < elements; i++)
		((float *)sum)[i] = ((float *)a)[i] + ((float *)b)[i];
	/* The fault: some of the sums are wrong. */
	for (u64 i = 4711; failed && i < elements; i += 10000)
		((float *)sum)[i] += 1;
	return SUCCESS;
}
#endif
