/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libnvidia-ml.so.1 of a simulated node: answers what pynvml asks about driver and GPUs; about MIG
 * in nvml_mig.h, about how a GPU is in nvml_readings.h, about limits of memory in nvml_memory.h.
 * As the real one, it shows only the GPUs whose device node this process may open, numbers them
 * in the order of their PCI addresses, and refuses a kernel driver of another version.
 * Must not: invent a value that the description does not have; what is not here is not supported, and no caller gives
 * NULL.
 * Not thread safe during nvmlInit.
 */
#include "description.h"

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NO_PERMISSION = 4,
       NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15,
       VERSION_MISMATCH = 18, UNKNOWN = 999 };

struct pci_info {
	char bus_id_legacy[16];
	unsigned domain, bus, device, pci_id, subsystem_id;
	char bus_id[32];
};

static struct description node;
static struct gpu *visible[MAX_GPUS];
static struct gpu *visible_mig[MAX_MIG];
static unsigned visible_count, visible_mig_count, users, asked;

/* What the kernel says: the real library asks the driver, and the file is the driver's answer. */
static int kernel_driver_differs(void)
{
	static char text[1024];
	if (read_file(AT_FDCWD, "/proc/driver/nvidia/version", text, sizeof text) <= 0)
		return 0;
	for (const char *p = text; *p && *p != '\n'; p++)
		if (text_after(p, " " DRIVER_VERSION " "))
			return 0;
	return 1;
}

EXPORT int nvmlInitWithFlags(unsigned flags)
{
	long denied;
	(void)flags;
	if (users++)
		return OK;
	users = 0;
	denied = open_device("/dev/nvidiactl");
	if (denied)
		return denied == -ENOENT ? DRIVER_NOT_LOADED : NO_PERMISSION;
	if (read_description(&node))
		return DRIVER_NOT_LOADED;
	while (node.hangs)
		sys_sleep();
	if (node.errors)
		return UNKNOWN;
	if (kernel_driver_differs())
		return VERSION_MISMATCH;
	visible_count = 0;
	for (unsigned i = 0; i < node.count; i++)
		if (!node.gpus[i].unlisted && !open_minor(node.gpus[i].minor))
			visible[visible_count++] = &node.gpus[i];
	visible_mig_count = 0;
	for (unsigned i = 0; i < node.mig_count; i++)
		if (!open_minor(node.mig[i].parent->minor) && !open_mig(&node.mig[i]))
			visible_mig[visible_mig_count++] = &node.mig[i];
	users = 1;
	return OK;
}
EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlShutdown(void) { return users ? (users--, OK) : UNINITIALIZED; }

/* pynvml has words of its own for most. */
EXPORT const char *nvmlErrorString(int code) { return code == GPU_IS_LOST ? "GPU is lost" : "Unknown Error"; }

static int give_text(char *to, unsigned room, const char *text)
{
	if (!users)
		return UNINITIALIZED;
	return text_copy(to, room, text) ? OK : INSUFFICIENT_SIZE;
}
static int give_number(unsigned *to, unsigned value)
{
	if (!users)
		return UNINITIALIZED;
	*to = value;
	return OK;
}

/* What NVML says of a whole GPU alone. */
static int give_gpu_number(struct gpu *gpu, unsigned *to, unsigned value)
{
	return gpu->parent ? NOT_SUPPORTED : give_number(to, value);
}

EXPORT int nvmlSystemGetDriverVersion(char *to, unsigned room)
{
	return give_text(to, room, node.driver);
}
EXPORT int nvmlSystemGetCudaDriverVersion(int *to)
{
	return give_number((unsigned *)to, node.cuda);
}

EXPORT int nvmlDeviceGetCount_v2(unsigned *to)
{
	/* The fault: the driver goes away between two calls. */
	return node.goes ? UNKNOWN : give_number(to, visible_count);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **to)
{
	if (!users)
		return UNINITIALIZED;
	if (index >= visible_count)
		return INVALID_ARGUMENT;
	*to = visible[index];
	return visible[index]->lost ? GPU_IS_LOST : OK;
}

/* `[domain:]bus:device.function`, the domain in any number of digits. */
struct address { unsigned domain, bus, device; };
static struct address read_address(const char *text)
{
	struct address found = {0, 0, (unsigned)text_number(text, 16)};
	for (; *text; text++)
		if (*text == ':')
			found = (struct address){found.bus, found.device, (unsigned)text_number(text + 1, 16)};
	return found;
}

EXPORT int nvmlDeviceGetName(struct gpu *gpu, char *to, unsigned room)
{
	return give_text(to, room, gpu->model);
}
EXPORT int nvmlDeviceGetUUID(struct gpu *gpu, char *to, unsigned room)
{
	return give_text(to, room, *gpu->claims ? gpu->claims : gpu->uuid);
}
EXPORT int nvmlDeviceGetBrand(struct gpu *gpu, unsigned *to)
{
	return give_gpu_number(gpu, to, gpu->brand);
}
EXPORT int nvmlDeviceGetCudaComputeCapability(struct gpu *gpu, unsigned *major, unsigned *minor)
{
	gpu = gpu->parent ? gpu->parent : gpu;
	int first = give_number(major, gpu->capability_major);
	return first ? first : give_number(minor, gpu->capability_minor);
}

EXPORT int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci_info *to)
{
	if (!users)
		return UNINITIALIZED;
	if (gpu->parent)
		return NOT_SUPPORTED;
	struct address here = read_address(gpu->bus_id);
	memset(to, 0, sizeof *to);
	to->domain = here.domain, to->bus = here.bus, to->device = here.device;
	to->pci_id = gpu->pci_id, to->subsystem_id = gpu->subsystem_id;
	/* NVML writes an 8-digit domain, in capitals; the kernel 4 digits, in small letters. */
	text_copy(to->bus_id, sizeof to->bus_id, "0000");
	text_append(to->bus_id, sizeof to->bus_id, gpu->bus_id);
	for (char *p = to->bus_id; *p; p++)
		*p = *p >= 'a' && *p <= 'f' ? (char)(*p - 32) : *p;
	text_copy(to->bus_id_legacy, sizeof to->bus_id_legacy, to->bus_id + 4);
	return OK;
}

EXPORT int nvmlDeviceGetP2PStatus(struct gpu *one, struct gpu *other, unsigned capability, unsigned *to)
{
	enum { NVLINK = 2, P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
	if (!users)
		return UNINITIALIZED;
	/* All reach each other by the node's switches; a node without them has no links. */
	*to = capability == NVLINK && node.nvswitches && one != other ? P2P_OK : P2P_NOT_SUPPORTED;
	return OK;
}

#include "nvml_memory.h"
#include "nvml_mig.h"
#include "nvml_readings.h"
