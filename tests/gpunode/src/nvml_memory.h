/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part of nvml.c about limits of memory, of R615.  What is set is added to /run/gpunode-limits, a line a call, if a
 * test has made that file.  As the real one, it refuses a cgroup that is not there, and tells no limit if none was set.
 * Must not: be included by anything else, or hold anything to a limit.
 */
#ifndef GPUNODE_NVML_MEMORY_H
#define GPUNODE_NVML_MEMORY_H

/* nvmlMemoryLimits_v1_t; nvmlDeviceGetMemoryLimits_v1 has used, too. */
struct memory_limits {
	const char *cgroup;
	unsigned long long soft, hard, used;
};

static struct { struct gpu *gpu; unsigned long long hard; } limited[MAX_GPUS];

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, struct gpu **to)
{
	if (!users)
		return UNINITIALIZED;
	struct address wanted = read_address(bus_id);
	for (unsigned i = 0; i < visible_count; i++) {
		struct address here = read_address(visible[i]->bus_id);
		if (here.domain == wanted.domain && here.bus == wanted.bus && here.device == wanted.device) {
			*to = visible[i];
			return OK;
		}
	}
	return NOT_FOUND;
}

EXPORT int nvmlDeviceSetMemoryLimits_v1(struct gpu *gpu, struct memory_limits *limits)
{
	char line[1024] = "";
	if (!users)
		return UNINITIALIZED;
	if (gpu->mig_enabled)
		return NOT_SUPPORTED;
	long fd = sys_open(limits->cgroup, O_RDONLY);
	if (fd < 0)
		return NOT_FOUND;
	sys_close((int)fd);
	text_copy(line, sizeof line, gpu->bus_id);
	text_append(line, sizeof line, " ");
	text_append(line, sizeof line, limits->cgroup);
	text_append(line, sizeof line, " ");
	append_number(line, sizeof line, limits->soft);
	text_append(line, sizeof line, " ");
	append_number(line, sizeof line, limits->hard);
	text_append(line, sizeof line, "\n");
	fd = sys_openat(AT_FDCWD, "/run/gpunode-limits", O_WRONLY | O_APPEND, 0);
	if (fd >= 0) {
		print_to((int)fd, line);
		sys_close((int)fd);
	}
	for (unsigned i = 0; i < MAX_GPUS; i++)
		if (!limited[i].gpu || limited[i].gpu == gpu) {
			limited[i].gpu = gpu, limited[i].hard = limits->hard;
			break;
		}
	return OK;
}

EXPORT int nvmlDeviceGetMemoryLimits_v1(struct gpu *gpu, struct memory_limits *limits)
{
	for (unsigned i = 0; i < MAX_GPUS; i++)
		if (limited[i].gpu == gpu) {
			limits->soft = 0, limits->hard = limited[i].hard, limits->used = 0;
			return OK;
		}
	return NOT_SUPPORTED;
}

#endif
