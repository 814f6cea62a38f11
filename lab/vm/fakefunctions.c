// SPDX-License-Identifier: GPL-2.0-only
/*
 * Virtual functions that are given a vGPU type, as NVIDIA's driver shows them, of any device with
 * SR-IOV: a driver of the name "nvidia", of the function that has them, and of them a variant of
 * vfio-pci. It takes those that driver_override gives it.
 *
 * Sources of what it shows: nvidia-vgpu-vfio's vgpu-vfio-pci-core.c and nv-procfs.c of NVIDIA's
 * kernel modules, NVIDIA's drivers/vfio/pci/nvidia-vgpu as proposed for the kernel (EBUSY while a
 * guest has it), and records of its lists (tests/recorded/typed.yaml). How it is moved: the kernel's
 * include/uapi/linux/vfio.h, as its other variants do it (mlx5).
 */
#include <linux/anon_inodes.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include <linux/version.h>
#include <linux/vfio_pci_core.h>

/* In GB, and in GPU instances: nothing but those in MIG mode. */
struct type {
	unsigned int id;
	const char *name;
	unsigned int memory;
	bool mig;
};

static const struct type types[] = {
	{ 948, "NVIDIA RTX6000-Ada-16Q", 16, false },
	{ 949, "NVIDIA RTX6000-Ada-24Q", 24, false },
	{ 950, "NVIDIA RTX6000-Ada-48Q", 48, false },
	{ 474, "GRID A100-1-5C", 5, true },
};

#define MEMORY 48

/*
 * What a guest writes there is all that its vGPU remembers: a byte of the function's own
 * configuration space, behind its capabilities.
 */
#define REMEMBERED 0xf0

/* What goes from one host to the other */
struct state {
	__le32 type;
	u8 remembered;
} __packed;

/* A file of it, which may outlive who has it open, and then gives nothing more. */
struct transfer {
	struct file *file;
	struct state state;
	size_t length;
	bool over;
};

struct function {
	struct vfio_pci_core_device core;
	struct list_head others;
	const struct type *type;
	bool open;
	enum vfio_device_mig_state mig_state;
	struct transfer *transfer;
};

/* All of what follows, of the one card that there is. */
static DEFINE_MUTEX(lock);
static LIST_HEAD(functions);
static bool unbind_locked;

/* The folder of its GPU instances in /proc, of each of which there is one. */
static struct proc_dir_entry *mig;
static int gpu_instances = -1;

static void show_gpu_instances(int number)
{
	char name[16];
	int i;

	for (i = 0; mig && i < max(number, gpu_instances); i++) {
		snprintf(name, sizeof(name), "gi%d", i + 1);
		if (i < number && i >= gpu_instances)
			proc_mkdir(name, mig);
		else if (i >= number && i < gpu_instances)
			remove_proc_subtree(name, mig);
	}
	gpu_instances = number;
}

/* It can be set as nvidia-smi does it on a real card, for any that exists. */
static int set_gpu_instances(const char *text, const struct kernel_param *param)
{
	int number, ret = kstrtoint(text, 10, &number);

	if (ret)
		return ret;
	mutex_lock(&lock);
	show_gpu_instances(number);
	mutex_unlock(&lock);
	return 0;
}

static const struct kernel_param_ops of_gpu_instances = {
	.set = set_gpu_instances,
	.get = param_get_int,
};
module_param_cb(gpu_instances, &of_gpu_instances, &gpu_instances, 0644);
MODULE_PARM_DESC(gpu_instances, "how many there are; -1: MIG mode is off");

static int clients;
module_param(clients, int, 0644);
MODULE_PARM_DESC(clients, "how often unbindLock is refused, as somebody has the card open");

/* Without MIG mode all vGPUs of a card have one size, as it is unless nvidia-smi vgpu -shm 1. */
static bool is_creatable(const struct type *type)
{
	unsigned int used = 0, number = 0;
	const struct function *each;

	list_for_each_entry(each, &functions, others) {
		if (!each->type)
			continue;
		if (each->type->memory != type->memory)
			return false;
		used += each->type->memory;
		number++;
	}
	if (gpu_instances < 0)
		return !type->mig && used + type->memory <= MEMORY;
	return type->mig && number < gpu_instances;
}

static struct function *function_of(struct device *dev)
{
	return container_of(dev_get_drvdata(dev), struct function, core);
}

static ssize_t creatable_vgpu_types_show(struct device *dev, struct device_attribute *attr,
					 char *buf)
{
	int said = sysfs_emit(buf, "ID    : vGPU Name\n"), i;

	mutex_lock(&lock);
	for (i = 0; i < ARRAY_SIZE(types) && !function_of(dev)->type; i++)
		if (is_creatable(&types[i]))
			said += sysfs_emit_at(buf, said, "%-5d : %s\n", types[i].id,
					      types[i].name);
	mutex_unlock(&lock);
	return said;
}
static DEVICE_ATTR_RO(creatable_vgpu_types);

static ssize_t current_vgpu_type_show(struct device *dev, struct device_attribute *attr,
				      char *buf)
{
	const struct type *type = READ_ONCE(function_of(dev)->type);

	return sysfs_emit(buf, "%d\n", type ? type->id : 0);
}

static int set_type(struct function *function, long id)
{
	int i;

	if (function->open)
		return -EBUSY;
	/* None to take, or one that is there: nothing can be put in its place. */
	if (!id == !function->type)
		return -EPERM;
	if (!id) {
		function->type = NULL;
		return 0;
	}
	for (i = 0; i < ARRAY_SIZE(types); i++) {
		if (types[i].id == id && is_creatable(&types[i])) {
			function->type = &types[i];
			return 0;
		}
	}
	return -EIO;
}

static ssize_t current_vgpu_type_store(struct device *dev, struct device_attribute *attr,
				       const char *buf, size_t count)
{
	long id;
	int ret = kstrtol(buf, 10, &id);

	if (ret)
		return ret;
	mutex_lock(&lock);
	ret = set_type(function_of(dev), id);
	mutex_unlock(&lock);
	return ret ? ret : count;
}
static DEVICE_ATTR_RW(current_vgpu_type);

static struct attribute *attributes[] = {
	&dev_attr_creatable_vgpu_types.attr,
	&dev_attr_current_vgpu_type.attr,
	NULL,
};

static const struct attribute_group group = {
	.name = "nvidia",
	.attrs = attributes,
};

/* A guest's vGPU moves with what it remembers, to one of its own type. */

static ssize_t read_state(struct file *file, char __user *buf, size_t count, loff_t *pos)
{
	struct transfer *transfer = file->private_data;
	ssize_t ret = -ENODEV;

	if (pos)
		return -ESPIPE;
	mutex_lock(&lock);
	if (!transfer->over)
		ret = simple_read_from_buffer(buf, count, &file->f_pos, &transfer->state,
					      transfer->length);
	mutex_unlock(&lock);
	return ret;
}

static ssize_t write_state(struct file *file, const char __user *buf, size_t count, loff_t *pos)
{
	struct transfer *transfer = file->private_data;
	ssize_t ret = -ENODEV;

	if (pos)
		return -ESPIPE;
	mutex_lock(&lock);
	if (!transfer->over)
		ret = simple_write_to_buffer(&transfer->state, sizeof(transfer->state),
					     &file->f_pos, buf, count);
	if (ret > 0)
		transfer->length = max_t(size_t, transfer->length, file->f_pos);
	mutex_unlock(&lock);
	return ret;
}

static int release_state(struct inode *inode, struct file *file)
{
	kfree(file->private_data);
	return 0;
}

static const struct file_operations saves = {
	.owner = THIS_MODULE,
	.read = read_state,
	.release = release_state,
};

static const struct file_operations loads = {
	.owner = THIS_MODULE,
	.write = write_state,
	.release = release_state,
};

static struct file *begin_transfer(struct function *function, const struct file_operations *fops,
				   int flags)
{
	struct transfer *transfer = kzalloc(sizeof(*transfer), GFP_KERNEL);
	struct file *file;

	if (!transfer)
		return ERR_PTR(-ENOMEM);
	file = anon_inode_getfile("nvidia-state", fops, transfer, flags);
	if (IS_ERR(file)) {
		kfree(transfer);
		return file;
	}
	stream_open(file_inode(file), file);
	transfer->file = file;
	function->transfer = transfer;
	return get_file(file);
}

static void end_transfer(struct function *function)
{
	struct transfer *transfer = function->transfer;

	if (!transfer)
		return;
	transfer->over = true;
	function->transfer = NULL;
	fput(transfer->file);
}

static struct file *save(struct function *function)
{
	struct file *file = begin_transfer(function, &saves, O_RDONLY);
	struct transfer *transfer = function->transfer;

	if (IS_ERR(file))
		return file;
	transfer->state.type = cpu_to_le32(function->type->id);
	pci_read_config_byte(function->core.pdev, REMEMBERED, &transfer->state.remembered);
	transfer->length = sizeof(transfer->state);
	return file;
}

static int load(struct function *function)
{
	const struct transfer *transfer = function->transfer;

	if (transfer->length != sizeof(transfer->state) ||
	    le32_to_cpu(transfer->state.type) != function->type->id)
		return -EINVAL;
	return pci_write_config_byte(function->core.pdev, REMEMBERED, transfer->state.remembered);
}

/* One of the steps that vfio_mig_get_next_state() knows where nothing is copied beforehand */
static struct file *step(struct function *function, enum vfio_device_mig_state next)
{
	enum vfio_device_mig_state from = function->mig_state;
	int ret;

	if (from == VFIO_DEVICE_STATE_STOP && next == VFIO_DEVICE_STATE_STOP_COPY)
		return save(function);
	if (from == VFIO_DEVICE_STATE_STOP && next == VFIO_DEVICE_STATE_RESUMING)
		return begin_transfer(function, &loads, O_WRONLY);
	if (from == VFIO_DEVICE_STATE_RESUMING) {
		ret = load(function);
		if (ret)
			return ERR_PTR(ret);
	}
	/* All others begin or end no file: it runs, may reach other devices, or does not. */
	end_transfer(function);
	return NULL;
}

static struct file *set_state(struct vfio_device *vdev, enum vfio_device_mig_state wanted)
{
	struct function *function = container_of(vdev, struct function, core.vdev);
	enum vfio_device_mig_state next;
	struct file *file = NULL;
	int ret;

	mutex_lock(&lock);
	while (!file && wanted != function->mig_state) {
		ret = vfio_mig_get_next_state(vdev, function->mig_state, wanted, &next);
		file = ret ? ERR_PTR(ret) : step(function, next);
		if (!IS_ERR(file))
			function->mig_state = next;
	}
	mutex_unlock(&lock);
	return file;
}

static int get_state(struct vfio_device *vdev, enum vfio_device_mig_state *state)
{
	*state = READ_ONCE(container_of(vdev, struct function, core.vdev)->mig_state);
	return 0;
}

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static int get_size(struct vfio_device *vdev, unsigned long *size)
{
	*size = sizeof(struct state);
	return 0;
}
#endif

static const struct vfio_migration_ops moves = {
	.migration_set_state = set_state,
	.migration_get_state = get_state,
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
	.migration_get_data_size = get_size,
#endif
};

static int init_device(struct vfio_device *vdev)
{
	/* Without P2P QEMU moves no guest with two of them: they are stopped one after another. */
	vdev->migration_flags = VFIO_MIGRATION_STOP_COPY | VFIO_MIGRATION_P2P;
	vdev->mig_ops = &moves;
	return vfio_pci_core_init_dev(vdev);
}

/* With lock */
static void run_anew(struct function *function)
{
	end_transfer(function);
	function->mig_state = VFIO_DEVICE_STATE_RUNNING;
}

static long ioctl(struct vfio_device *vdev, unsigned int number, unsigned long argument)
{
	long ret = vfio_pci_core_ioctl(vdev, number, argument);

	if (number == VFIO_DEVICE_RESET && !ret) {
		mutex_lock(&lock);
		run_anew(container_of(vdev, struct function, core.vdev));
		mutex_unlock(&lock);
	}
	return ret;
}

static int open_device(struct vfio_device *vdev)
{
	struct function *function = container_of(vdev, struct function, core.vdev);
	int ret = -ENODEV;

	mutex_lock(&lock);
	if (function->type)
		ret = vfio_pci_core_enable(&function->core);
	if (!ret) {
		pci_write_config_byte(function->core.pdev, REMEMBERED, 0);
		run_anew(function);
		vfio_pci_core_finish_enable(&function->core);
		function->open = true;
	}
	mutex_unlock(&lock);
	return ret;
}

static void close_device(struct vfio_device *vdev)
{
	struct function *function = container_of(vdev, struct function, core.vdev);

	vfio_pci_core_close_device(vdev);
	mutex_lock(&lock);
	run_anew(function);
	function->open = false;
	mutex_unlock(&lock);
}

static const struct vfio_device_ops operations = {
	.name = "nvidia-vfio-pci",
	.init = init_device,
	.release = vfio_pci_core_release_dev,
	.open_device = open_device,
	.close_device = close_device,
	.ioctl = ioctl,
	.device_feature = vfio_pci_core_ioctl_feature,
	.read = vfio_pci_core_read,
	.write = vfio_pci_core_write,
	.mmap = vfio_pci_core_mmap,
	.request = vfio_pci_core_request,
	.match = vfio_pci_core_match,
};

/* unbindLock of the card: 1 where it was written and nobody has the card open */

static int unbind_lock_show(struct seq_file *file, void *data)
{
	seq_printf(file, "%d\n", unbind_locked);
	return 0;
}

static ssize_t unbind_lock_write(struct file *file, const char __user *buf, size_t count,
				 loff_t *pos)
{
	bool wanted;
	int ret = kstrtobool_from_user(buf, count, &wanted);

	if (ret)
		return ret;
	mutex_lock(&lock);
	if (wanted && clients)
		clients--;
	else
		unbind_locked = wanted;
	mutex_unlock(&lock);
	return count;
}

static int unbind_lock_open(struct inode *inode, struct file *file)
{
	return single_open(file, unbind_lock_show, NULL);
}

static const struct proc_ops unbind_lock = {
	.proc_open = unbind_lock_open,
	.proc_read = seq_read,
	.proc_write = unbind_lock_write,
	.proc_release = single_release,
};

static struct proc_dir_entry *gpus, *capabilities;

/* N of /dev/nvidiaN, which nobody makes here */
static int minor(struct pci_dev *pdev)
{
	return pdev->bus->number;
}

static int information_show(struct seq_file *file, void *data)
{
	seq_printf(file, "Device Minor: \t %d\n", minor(pde_data(file_inode(file->file))));
	return 0;
}

static void remove_card(struct pci_dev *pdev)
{
	char name[16];

	remove_proc_subtree(pci_name(pdev), gpus);
	mutex_lock(&lock);
	/* They do not outlive the driver's hold on the card; MIG mode does. */
	gpu_instances = min(gpu_instances, 0);
	mig = NULL;
	mutex_unlock(&lock);
	snprintf(name, sizeof(name), "gpu%d", minor(pdev));
	remove_proc_subtree(name, capabilities);
}

static int probe_card(struct pci_dev *pdev)
{
	struct proc_dir_entry *folder = proc_mkdir(pci_name(pdev), gpus), *own;
	char name[16];

	if (!folder || !proc_create("unbindLock", 0644, folder, &unbind_lock) ||
	    !proc_create_single_data("information", 0444, folder, information_show, pdev))
		return -ENOMEM;
	snprintf(name, sizeof(name), "gpu%d", minor(pdev));
	own = proc_mkdir(name, capabilities);
	mutex_lock(&lock);
	unbind_locked = false;
	mig = own ? proc_mkdir("mig", own) : NULL;
	mutex_unlock(&lock);
	return mig ? 0 : -ENOMEM;
}

static int probe_function(struct pci_dev *pdev)
{
	struct function *function;
	int ret;

	function = vfio_alloc_device(function, core.vdev, &pdev->dev, &operations);
	if (IS_ERR(function))
		return PTR_ERR(function);
	dev_set_drvdata(&pdev->dev, &function->core);
	ret = vfio_pci_core_register_device(&function->core);
	if (ret)
		goto put;
	mutex_lock(&lock);
	list_add(&function->others, &functions);
	mutex_unlock(&lock);
	ret = sysfs_create_group(&pdev->dev.kobj, &group);
	if (!ret)
		return 0;
	mutex_lock(&lock);
	list_del(&function->others);
	mutex_unlock(&lock);
	vfio_pci_core_unregister_device(&function->core);
put:
	vfio_put_device(&function->core.vdev);
	return ret;
}

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	return pdev->is_virtfn ? probe_function(pdev) : probe_card(pdev);
}

static void remove(struct pci_dev *pdev)
{
	struct function *function;

	if (!pdev->is_virtfn) {
		remove_card(pdev);
		return;
	}
	function = function_of(&pdev->dev);
	sysfs_remove_group(&pdev->dev.kobj, &group);
	vfio_pci_core_unregister_device(&function->core);
	mutex_lock(&lock);
	list_del(&function->others);
	mutex_unlock(&lock);
	vfio_put_device(&function->core.vdev);
}

/* No MODULE_DEVICE_TABLE: by that libvirt would take it for the best variant for any device. */
static const struct pci_device_id ids[] = {
	{ PCI_DRIVER_OVERRIDE_DEVICE_VFIO(PCI_ANY_ID, PCI_ANY_ID) },
	{}
};

static struct pci_driver driver = {
	.name = "nvidia",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
	.driver_managed_dma = true,
};

static int __init start(void)
{
	int ret;

	if (!proc_mkdir("driver/nvidia", NULL))
		return -ENOMEM;
	gpus = proc_mkdir("driver/nvidia/gpus", NULL);
	capabilities = proc_mkdir("driver/nvidia/capabilities", NULL);
	ret = gpus && capabilities ? pci_register_driver(&driver) : -ENOMEM;
	if (ret)
		remove_proc_subtree("driver/nvidia", NULL);
	return ret;
}

static void __exit end(void)
{
	pci_unregister_driver(&driver);
	remove_proc_subtree("driver/nvidia", NULL);
}

module_init(start);
module_exit(end);
MODULE_DESCRIPTION("Virtual functions with vGPU types, without a GPU");
MODULE_LICENSE("GPL");
