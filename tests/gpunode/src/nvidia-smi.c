/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvidia-smi of a simulated node: shows which device nodes this process may open.
 *   nvidia-smi            one line for each node there is of those that a container can ask for:
 *                         /dev/nvidia*, nvidia-caps/, nvidia-caps-imex-channels/, dri/, infiniband/,
 *                         gdrdrv
 *   nvidia-smi -L         GPU n: model (UUID: ...), for each GPU that may be opened, and below it
 *                         the MIG devices that may be used
 * Exit 0 where every node shown is allowed, the control device among them; else 1.
 * Under any other name it stands for one of the driver's other programs and does nothing.
 * Must not: need anything from the image it runs in.
 */
#include "description.h"

enum { NAME = 64 };

static struct description description;

static int is_gpu(const char *name)
{
	const char *number = text_after(name, "nvidia");
	return number && *number >= '0' && *number <= '9';
}

static const char *verdict(long result)
{
	static char other[24] = "errno ";
	switch (result) {
	case 0: return "allowed";
	case -EPERM: return "denied";
	case -ENOENT: return "ENOENT";
	case -EACCES: return "EACCES";
	case -ELOOP: return "ELOOP";
	}
	append_number(other, sizeof other, (u64)-result);
	return other;
}

/* Blanks up to a column, one at least. */
static const char *pad(size_t written, size_t column)
{
	static const char blanks[] = "                                ";
	return blanks + sizeof blanks - 1 - (written < column ? column - written : 1);
}

static long print_node(const char *name)
{
	char path[NAME + 8] = "/dev/";
	text_append(path, sizeof path, name);
	/* Capabilities are only ever read. */
	long result = open_device_for(path, text_after(name, "nvidia-caps/") ? O_RDONLY : O_RDWR);
	const char *said = verdict(result);
	SAY(path, pad(text_length(path), 24), said);
	for (unsigned i = 0; is_gpu(name) && i < description.count; i++)
		if (description.gpus[i].minor == text_number(name + 6, 10))
			SAY(pad(text_length(said), 10), description.gpus[i].model, "  ", description.gpus[i].uuid);
	SAY("\n");
	return result;
}

/* Of those whose names begin so: 1 if one may not be opened; names are paths below /dev. */
static int show_nodes(const char *folder, const char *prefix)
{
	static char entries[32768];
	char path[NAME] = "/dev/", name[NAME];
	int refused = 0;
	text_append(path, sizeof path, folder);
	long fd = sys_open(path, O_RDONLY | O_DIRECTORY), got;
	while (fd >= 0 && (got = sys_getdents64((int)fd, entries, sizeof entries)) > 0)
		for (long at = 0; at < got;) {
			struct dirent64 *entry = (void *)(entries + at);
			at += entry->d_reclen;
			if (!text_after(entry->d_name, prefix) || entry->d_type == DT_DIR)
				continue;
			text_copy(name, sizeof name, folder);
			text_append(name, sizeof name, entry->d_name);
			refused |= print_node(name) != 0;
		}
	if (fd >= 0)
		sys_close((int)fd);
	return refused;
}

static void list_mig(const struct gpu *gpu)
{
	unsigned number = 0;
	for (const struct gpu *mig = description.mig; mig < description.mig + description.mig_count; mig++) {
		if (mig->parent != gpu || open_mig(mig))
			continue;
		const char *profile = mig->model + text_length(gpu->model) + 1;
		SAY("  ", profile, pad(2 + text_length(profile), 20), "Device  ", number_text(number++));
		SAY(": (UUID: ", mig->uuid, ")\n");
	}
}

/* As the driver's own, it knows those GPUs alone that /proc shows. */
static int is_shown(const struct gpu *gpu)
{
	char path[128] = "/proc/driver/nvidia/gpus/";
	text_append(path, sizeof path, gpu->bus_id);
	long fd = sys_open(path, O_RDONLY | O_DIRECTORY);
	if (fd >= 0)
		sys_close((int)fd);
	return fd >= 0;
}

static int list_gpus(void)
{
	unsigned number = 0;
	for (const struct gpu *gpu = description.gpus; gpu < description.gpus + description.count; gpu++) {
		if (!is_shown(gpu) || open_minor(gpu->minor))
			continue;
		SAY("GPU ", number_text(number++), ": ", gpu->model, " (UUID: ", gpu->uuid, ")\n");
		list_mig(gpu);
	}
	if (!number)
		SAY("No devices found.\n");
	return number == 0 || open_device("/dev/nvidiactl") != 0;
}

static const struct { const char *folder, *prefix; } places[] = {
	{"", "nvidia"}, {"nvidia-caps/", "nvidia-cap"}, {"nvidia-caps-imex-channels/", "channel"},
	{"dri/", ""}, {"infiniband/", ""}, {"", "gdrdrv"},
};

static int show(void)
{
	int refused = open_device("/dev/nvidiactl") == -ENOENT;
	SAY("NVIDIA-SMI (simulated)  Driver Version: ", *description.driver ? description.driver : "unknown", "\n");
	for (unsigned i = 0; i < sizeof places / sizeof *places; i++)
		refused |= show_nodes(places[i].folder, places[i].prefix);
	return refused;
}

LOCAL void start(long *stack)
{
	int argc = (int)stack[0];
	char **argv = (char **)(stack + 1);
	const char *name = argc ? argv[0] : "";
	for (const char *p = name; *p; p++)
		if (*p == '/')
			name = p + 1;
	if (text_compare(name, "nvidia-smi")) {
		SAY(name, ": simulated, does nothing\n");
		sys_exit(0);
	}
	read_description(&description);
	if (argc == 2 && !text_compare(argv[1], "-L"))
		sys_exit(list_gpus());
	if (argc > 1) {
		print_to(2, "usage: nvidia-smi [-L]\n");
		sys_exit(2);
	}
	sys_exit(show());
}
ENTRY(start);
