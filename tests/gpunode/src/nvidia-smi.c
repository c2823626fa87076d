/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvidia-smi of a simulated node: shows which device nodes this process may open.
 *   nvidia-smi            one line for each node there is of those that a container can ask for:
 *                         /dev/nvidia*, nvidia-caps/, nvidia-caps-imex-channels/, dri/, infiniband/,
 *                         gdrdrv
 *   nvidia-smi WHAT...    the control device and these, there or not: N is /dev/nvidiaN, else a
 *                         path below /dev
 *   nvidia-smi -L         GPU n: model (UUID: ...), for each GPU that may be opened, and below it
 *                         the MIG devices that may be used
 * Exit 0 where every node shown is allowed, the control device among them; else 1.
 * Under any other name it stands for one of the driver's other programs and does nothing.
 * Must not: need anything from the image it runs in.
 */
#include "description.h"

enum { MAX_NODES = 256, NAME = 64 };

static char nodes[MAX_NODES][NAME];
static unsigned node_count;

static void pad(char *line, size_t room, size_t column)
{
	do
		text_append(line, room, " ");
	while (text_length(line) < column);
}

static int is_gpu(const char *name)
{
	const char *number = text_after(name, "nvidia");
	return number && *number >= '0' && *number <= '9';
}

/* Control device first, then the GPUs by number, then the others by name. */
static int comes_before(const char *a, const char *b)
{
	int control = !text_compare(b, "nvidiactl") - !text_compare(a, "nvidiactl");
	if (control)
		return control < 0;
	if (is_gpu(a) && is_gpu(b))
		return text_number(a + 6, 10) < text_number(b + 6, 10);
	if (is_gpu(a) || is_gpu(b))
		return is_gpu(a);
	return text_compare(a, b) < 0;
}

static void add_node(const char *name)
{
	unsigned i = node_count;
	if (node_count == MAX_NODES)
		return;
	for (node_count++; i && comes_before(name, nodes[i - 1]); i--)
		memcpy(nodes[i], nodes[i - 1], NAME);
	text_copy(nodes[i], NAME, name);
}

/* Names are paths below /dev. */
static void find_nodes(const char *folder, const char *prefix)
{
	static char entries[32768];
	char path[NAME] = "/dev/", name[NAME];
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
			add_node(name);
		}
	if (fd >= 0)
		sys_close((int)fd);
}

static const char *verdict(long result)
{
	static char number[24];
	switch (result) {
	case 0: return "allowed";
	case -EPERM: return "denied";
	case -ENOENT: return "ENOENT";
	case -EACCES: return "EACCES";
	case -ELOOP: return "ELOOP";
	}
	text_copy(number, sizeof number, "errno ");
	append_number(number, sizeof number, (u64)-result);
	return number;
}

/* The value of `key` in an `information` file, or "". */
static void information(const char *text, const char *key, char *to, size_t room)
{
	const char *value = NULL;
	to[0] = 0;
	for (const char *p = text; *p && !value; p++)
		if (p == text || p[-1] == '\n')
			value = text_after(p, key);
	while (value && (*value == ' ' || *value == '\t'))
		value++;
	for (size_t n = 0; value && *value && *value != '\n' && n + 1 < room; n++)
		to[n] = *value++, to[n + 1] = 0;
}

struct card {
	char bus_id[32], model[96], uuid[48];
	unsigned minor;
};
static struct card cards[MAX_GPUS];
static unsigned card_count;

static void add_card(const char *bus_id)
{
	static char text[2048];
	char path[128] = "/proc/driver/nvidia/gpus/", minor[16];
	struct card card = {.minor = 0};
	unsigned i = card_count;
	text_append(path, sizeof path, bus_id);
	text_append(path, sizeof path, "/information");
	if (card_count == MAX_GPUS || read_file(AT_FDCWD, path, text, sizeof text) <= 0)
		return;
	text_copy(card.bus_id, sizeof card.bus_id, bus_id);
	information(text, "Model:", card.model, sizeof card.model);
	information(text, "GPU UUID:", card.uuid, sizeof card.uuid);
	information(text, "Device Minor:", minor, sizeof minor);
	card.minor = (unsigned)text_number(minor, 10);
	for (card_count++; i && text_compare(bus_id, cards[i - 1].bus_id) < 0; i--)
		cards[i] = cards[i - 1];
	cards[i] = card;
}

static void find_cards(void)
{
	static char entries[8192];
	long fd = sys_open("/proc/driver/nvidia/gpus", O_RDONLY | O_DIRECTORY), got;
	while (fd >= 0 && (got = sys_getdents64((int)fd, entries, sizeof entries)) > 0)
		for (long at = 0; at < got;) {
			struct dirent64 *entry = (void *)(entries + at);
			if (entry->d_name[0] != '.')
				add_card(entry->d_name);
			at += entry->d_reclen;
		}
	if (fd >= 0)
		sys_close((int)fd);
}

static void print_driver(void)
{
	static char text[1024];
	char line[128] = "NVIDIA-SMI (simulated)  Driver Version: ";
	long got = read_file(AT_FDCWD, "/proc/driver/nvidia/version", text, sizeof text);
	const char *p = text;
	/* The version is the first word of the first line that begins with a digit and has a dot. */
	while (*p && !(p > text && p[-1] == ' ' && *p >= '0' && *p <= '9'))
		p++;
	char version[32] = "";
	for (size_t n = 0; *p && *p != ' ' && n + 1 < sizeof version; n++)
		version[n] = *p++, version[n + 1] = 0;
	text_append(line, sizeof line, version[0] ? version : "unknown");
	if (got < 0) {
		text_append(line, sizeof line, " (/proc/driver/nvidia/version: ");
		text_append(line, sizeof line, verdict(got));
		text_append(line, sizeof line, ")");
	}
	text_append(line, sizeof line, "\n");
	print_to(1, line);
}

static long print_node(const char *name)
{
	char line[256] = "/dev/";
	long result;
	text_append(line, sizeof line, name);
	/* Capabilities are only ever read. */
	result = open_device_for(line, text_after(name, "nvidia-caps/") ? O_RDONLY : O_RDWR);
	pad(line, sizeof line, 24);
	text_append(line, sizeof line, verdict(result));
	for (unsigned i = 0; is_gpu(name) && i < card_count; i++)
		if (cards[i].minor == text_number(name + 6, 10)) {
			pad(line, sizeof line, 34);
			text_append(line, sizeof line, cards[i].model);
			text_append(line, sizeof line, "  ");
			text_append(line, sizeof line, cards[i].uuid);
		}
	text_append(line, sizeof line, "\n");
	print_to(1, line);
	return result;
}

static struct description description;

static void list_mig(const char *bus_id)
{
	unsigned number = 0;
	for (unsigned i = 0; i < description.mig_count; i++) {
		struct gpu *mig = &description.mig[i];
		char line[256] = "  ";
		if (text_compare(mig->parent->bus_id, bus_id) || open_mig(mig))
			continue;
		text_append(line, sizeof line, mig->model + text_length(mig->parent->model) + 1);
		pad(line, sizeof line, 20);
		text_append(line, sizeof line, "Device  ");
		append_number(line, sizeof line, number++);
		text_append(line, sizeof line, ": (UUID: ");
		text_append(line, sizeof line, mig->uuid);
		text_append(line, sizeof line, ")\n");
		print_to(1, line);
	}
}

static int list_gpus(void)
{
	unsigned number = 0;
	read_description(&description); /* without it there are no MIG devices to show */
	for (unsigned i = 0; i < card_count; i++) {
		char line[256] = "GPU ";
		if (open_minor(cards[i].minor))
			continue;
		append_number(line, sizeof line, number++);
		text_append(line, sizeof line, ": ");
		text_append(line, sizeof line, cards[i].model);
		text_append(line, sizeof line, " (UUID: ");
		text_append(line, sizeof line, cards[i].uuid);
		text_append(line, sizeof line, ")\n");
		print_to(1, line);
		list_mig(cards[i].bus_id);
	}
	if (!number)
		print_to(1, "No devices found.\n");
	return number == 0 || open_device("/dev/nvidiactl") != 0;
}

static const struct { const char *folder, *prefix; } places[] = {
	{"", "nvidia"}, {"nvidia-caps/", "nvidia-cap"}, {"nvidia-caps-imex-channels/", "channel"},
	{"dri/", ""}, {"infiniband/", ""}, {"", "gdrdrv"},
};

static int show(int argc, char **argv)
{
	int refused = 0, control = 0;
	if (argc > 1)
		add_node("nvidiactl");
	for (int i = 1; i < argc; i++) {
		char name[NAME] = "";
		if (argv[i][0] >= '0' && argv[i][0] <= '9')
			text_append(name, sizeof name, "nvidia");
		text_append(name, sizeof name, argv[i]);
		add_node(name);
	}
	for (unsigned i = 0; argc == 1 && i < sizeof places / sizeof *places; i++)
		find_nodes(places[i].folder, places[i].prefix);
	print_driver();
	for (unsigned i = 0; i < node_count; i++) {
		control |= !text_compare(nodes[i], "nvidiactl");
		refused |= print_node(nodes[i]) != 0;
	}
	if (!control)
		print_to(1, "/dev/nvidiactl           ENOENT\n");
	return refused || !control;
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
		print_to(1, name);
		print_to(1, ": simulated, does nothing\n");
		sys_exit(0);
	}
	find_cards();
	if (argc == 2 && !text_compare(argv[1], "-L"))
		sys_exit(list_gpus());
	for (int i = 1; i < argc; i++)
		if (argv[i][0] == '-') {
			print_to(2, "usage: nvidia-smi [-L | WHAT...]\n");
			sys_exit(2);
		}
	sys_exit(show(argc, argv));
}
ENTRY(start);
