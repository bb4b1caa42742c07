#!/bin/busybox sh
# The first program of a guest. It loads the drivers, mounts the root and goes on there.
# An initramfs is memory that pressure cannot free, so hardly anything is in it.
bb=/bin/busybox
$bb mount -t devtmpfs dev /dev
$bb mount -t proc proc /proc
for module in /modules/*.ko; do
  $bb insmod "$module" || echo "parley: $module was refused"
done
if $bb grep -qw parley.probe=1 /proc/cmdline; then
  echo "parley: the kernel runs"
  exec $bb reboot -f # QEMU ends: it runs with -no-reboot
fi
if ! $bb mount -t ext4 -o ro /dev/vda /root; then
  echo "parley: the root cannot be mounted"
  exec $bb reboot -f
fi
$bb umount /proc
$bb mount --move /dev /root/dev
exec $bb switch_root /root /sbin/init
