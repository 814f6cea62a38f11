# SPDX-License-Identifier: Apache-2.0
# What root in a guest tries to get at a GPU that is not its own:  probe.sh PATH MAJOR MINOR PCI
# One line for each way: its name, "refused" or "POSSIBLE", and what the kernel said, with tabs
# between. Runs in busybox's shell. Everything that succeeds is undone.
path=$1 major=$2 minor=$3 pci=$4
work=/tmp/.probe.$$
mkdir -p "$work"

# try NAME COMMAND: COMMAND succeeds where the way is open.
try() {
    name=$1
    shift
    if said=$("$@" 2>&1); then
        verdict=POSSIBLE
    else
        verdict=refused
    fi
    printf '%s\t%s\t%s\n' "$name" "$verdict" "$(echo "$said" | tail -n 1)"
}

# Open is open also where no driver is behind the number: the device cgroup is asked first.
opens() {
    said=$( (: <"$1") 2>&1) && return 0
    echo "$said"
    case $said in
    *"No such device"*) return 0 ;;
    esac
    return 1
}

make_node() {
    mknod "$work/node" c "$major" "$minor" && opens "$work/node"
}

mount_devtmpfs() {
    mkdir -p "$work/dev"
    mount -t devtmpfs none "$work/dev" || return 1
    umount "$work/dev"
}

# cgroup v1 has a file for each group, which says what devices it has.
has_devices_allow() {
    grep -q ':devices:' /proc/self/cgroup
}

allow_in_cgroup() {
    mkdir -p "$work/cgroup"
    mount -t cgroup -o devices none "$work/cgroup" || return 1
    own=$(sed -n 's/^[0-9]*:devices:\(.*\)/\1/p' /proc/self/cgroup)
    echo "c $major:* rwm" >"$work/cgroup$own/devices.allow"
    # shellcheck disable=SC2320  # whether it could be written
    result=$?
    umount "$work/cgroup"
    return $result
}

allow_in_mounted_cgroup() {
    files=$(find /sys/fs/cgroup -name devices.allow)
    if [ -z "$files" ]; then
        echo "no devices.allow to write to"
        return 1
    fi
    for file in $files; do
        echo "c $major:* rwm" >"$file" && return 0
    done
    return 1
}

# In cgroup v2 a program judges those in the guest's group and below: who is elsewhere is free of it.
join_in_cgroup() {
    mkdir -p "$work/cgroup"
    mount -t cgroup2 none "$work/cgroup" || return 1
    join_another "$work/cgroup"
    result=$?
    umount "$work/cgroup"
    return $result
}

join_in_mounted_cgroup() {
    if has_devices_allow; then
        join_another /sys/fs/cgroup/devices
    else
        join_another /sys/fs/cgroup
    fi
}

# Only the subshell goes there, and it ends. A guest's group is lxc-N-NAME.libvirt-lxc, or with systemd
# machine-lxc-N-NAME.scope.
join_another() {
    if has_devices_allow; then name=devices; else name=; fi
    own=$(sed -n "s/^[0-9]*:$name:\(.*libvirt-lxc\|.*machine-lxc[^/]*\).*/\1/p" /proc/self/cgroup)
    groups=$(find "$1" -name cgroup.procs)
    if [ -z "$own" ]; then
        echo "which group is the guest's is not known: nothing was tried"
        return 0
    fi
    if [ -z "$groups" ]; then
        echo "no cgroup.procs to write to"
        return 1
    fi
    for file in $groups; do
        case $file in
        "$1$own"/*) ;;
        *) (echo 0 >"$file") && return 0 ;;
        esac
    done
    return 1
}

# "bind" changes this mount alone. Without it the filesystem itself is remounted: the machine's.
remount_sys() {
    mount -o remount,bind,rw /sys || return 1
    driver_override /sys
    result=$?
    mount -o remount,bind,ro /sys
    return $result
}

own_sys() {
    mkdir -p "$work/sys"
    mount -t sysfs none "$work/sys" || return 1
    driver_override "$work/sys"
    result=$?
    umount "$work/sys"
    return $result
}

# The address named, or else any device of the machine: what is written is what stands there.
driver_override() {
    for file in "$1/bus/pci/devices/$pci/driver_override" \
        "$1"/bus/pci/devices/*/driver_override "$1"/bus/*/devices/*/driver_override; do
        [ -e "$file" ] || continue
        old=$(cat "$file")
        [ "$old" = "(null)" ] && old=
        echo "$old" >"$file"
        return
    done
    echo "no driver_override to write to"
    return 1
}

# Opening for appending writes nothing.
core_pattern() {
    mkdir -p "$work/proc"
    if mount -t proc none "$work/proc"; then
        (: >>"$work/proc/sys/kernel/core_pattern") 2>&1
        result=$?
        umount "$work/proc"
        [ $result = 0 ] && return 0
    fi
    mount -o remount,bind,rw /proc/sys
    : >>/proc/sys/kernel/core_pattern
}

try "open $path" opens "$path"
try "mknod c $major $minor" make_node
try "mount devtmpfs" mount_devtmpfs
if has_devices_allow; then
    try "mount cgroup and devices.allow" allow_in_cgroup
    try "devices.allow of a cgroup already mounted" allow_in_mounted_cgroup
else
    try "mount cgroup2 and join another group" join_in_cgroup
fi
try "join another group of the mounted cgroup" join_in_mounted_cgroup
try "driver_override in /sys as it is" driver_override /sys
try "remount /sys read-write, driver_override" remount_sys
try "mount sysfs, driver_override" own_sys
try "remount or mount /proc, open core_pattern" core_pattern
rm -rf "$work"
