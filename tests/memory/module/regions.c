// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only
/*
 * Regions of GPU memory without a GPU, for the dmem controller of cgroup v2.
 *
 *   insmod regions.ko regions=NAME@BYTES[@MINOR],...
 *
 * Each region is registered by its name, as a GPU's driver does.  One with a minor is a GPU of NVIDIA's: who writes a
 * number of bytes to the device node 195:MINOR holds as much of it until the file is closed, or gets ENOMEM.
 */
#include <linux/cgroup_dmem.h>
#include <linux/fs.h>
#include <linux/list.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/version.h>

#define MAJOR_OF_NVIDIA 195
#define MOST 64

struct region { struct dmem_cgroup_region *known; int minor; };
struct holder { struct region *region; struct list_head charges; struct mutex lock; };
struct charge { struct list_head list; struct dmem_cgroup_pool_state *pool; u64 size; };

static char *regions[MOST];
static int given;
module_param_array(regions, charp, &given, 0444);
static struct region table[MOST];
static int count;

static int hold(struct inode *inode, struct file *file)
{
	struct holder *holder;
	int i;

	for (i = 0; i < count && table[i].minor != iminor(inode); i++)
		;
	if (i == count)
		return -ENXIO;
	holder = kzalloc(sizeof(*holder), GFP_KERNEL);
	if (!holder)
		return -ENOMEM;
	holder->region = &table[i];
	INIT_LIST_HEAD(&holder->charges);
	mutex_init(&holder->lock);
	file->private_data = holder;
	return 0;
}

static ssize_t allocate(struct file *file, const char __user *text, size_t length, loff_t *offset)
{
	struct holder *holder = file->private_data;
	struct charge *charge = kzalloc(sizeof(*charge), GFP_KERNEL);
	int error;

	if (!charge)
		return -ENOMEM;
	error = kstrtoull_from_user(text, length, 10, &charge->size);
	if (!error)
		error = dmem_cgroup_try_charge(holder->region->known, charge->size, &charge->pool, NULL);
	if (error) {
		kfree(charge);
		/* As drivers say it. */
		return error == -EAGAIN ? -ENOMEM : error;
	}
	mutex_lock(&holder->lock);
	list_add(&charge->list, &holder->charges);
	mutex_unlock(&holder->lock);
	return length;
}

static int release(struct inode *inode, struct file *file)
{
	struct holder *holder = file->private_data;
	struct charge *charge, *next;

	list_for_each_entry_safe(charge, next, &holder->charges, list) {
		dmem_cgroup_uncharge(charge->pool, charge->size);
		kfree(charge);
	}
	kfree(holder);
	return 0;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE, .open = hold, .write = allocate, .release = release,
};

static struct dmem_cgroup_region *tell(const char *name, u64 size)
{
#if LINUX_VERSION_CODE >= KERNEL_VERSION(7, 3, 0)
	const struct dmem_cgroup_init init = { .size = size };

	return dmem_cgroup_register_region(&init, "%s", name);
#else
	return dmem_cgroup_register_region(size, "%s", name);
#endif
}

static void forget(void)
{
	while (count--)
		dmem_cgroup_unregister_region(table[count].known);
}

static int add(int i, char *text)
{
	char *name = strsep(&text, "@"), *size = strsep(&text, "@");
	u64 bytes;

	table[i].minor = -1;
	if (!size || kstrtoull(size, 10, &bytes) || (text && kstrtoint(text, 10, &table[i].minor)))
		return -EINVAL;
	table[i].known = tell(name, bytes);
	return PTR_ERR_OR_ZERO(table[i].known);
}

static int __init begin(void)
{
	int error = 0;

	for (count = 0; count < given && !error; count += !error)
		error = add(count, regions[count]);
	if (!error)
		error = register_chrdev(MAJOR_OF_NVIDIA, "nvidia", &operations);
	if (error)
		forget();
	return error;
}

static void __exit end(void)
{
	unregister_chrdev(MAJOR_OF_NVIDIA, "nvidia");
	forget();
}

module_init(begin);
module_exit(end);
MODULE_DESCRIPTION("Regions of GPU memory without a GPU");
MODULE_LICENSE("GPL");
