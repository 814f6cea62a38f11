// SPDX-License-Identifier: GPL-2.0-only
/*
 * Has KVM take each of its guests' writes to CR8, as it does where the local APIC is emulated outside the
 * kernel.
 *
 * KVM on AMD's processors lets a guest write CR8 itself while no interrupt waits for its priority to
 * sink (svm_update_cr8_intercept() in arch/x86/kvm/svm/svm.c). A processor that QEMU emulates ends
 * QEMU there, where a virtual interrupt is pending at that moment: helper_write_crN() calls
 * cpu_interrupt() without the lock that this expects (target/i386/tcg/sysemu/misc_helper.c). Linux
 * does not write CR8; UEFI does at the end of each interrupt.
 */
#include <linux/kprobes.h>
#include <linux/module.h>

static noinline notrace void nothing(void)
{
}

/* What the caller of the probed function calls in its place. */
static int divert(struct kprobe *probe, struct pt_regs *regs)
{
	regs->ip = (unsigned long)nothing;
	return 1;
}
NOKPROBE_SYMBOL(divert);

static struct kprobe probe = {
	.symbol_name = "svm_update_cr8_intercept",
	.pre_handler = divert,
};

static int __init begin(void)
{
	return register_kprobe(&probe);
}
module_init(begin);

static void __exit end(void)
{
	unregister_kprobe(&probe);
}
module_exit(end);

MODULE_DESCRIPTION("Guests' writes to CR8, all taken by KVM");
MODULE_LICENSE("GPL");
