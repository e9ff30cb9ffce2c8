# usage: unshare -mpf --kill-child --mount-proc sh -eu policy.sh SCRIPT
# Runs a script as root on a machine of its own, as far as a policy sees it: /run is empty; /etc has
# the users anna, ben and carl, of whom ben is in the group students, and what is written to it,
# to /tmp and to /usr/lib is gone afterwards; the stand-in driver is where the dynamic linker looks by itself.
dir=$(mktemp -d -p /tmp)
trap 'umount -l "$dir"; rmdir "$dir"' EXIT
mount -t tmpfs -o mode=755 tmpfs "$dir"
mkdir "$dir/bin" "$dir/etc" "$dir/etc.work" "$dir/lib" "$dir/lib.work"
mkdir -m 1777 "$dir/tmp"
mount -t overlay -o "lowerdir=/etc,upperdir=$dir/etc,workdir=$dir/etc.work" overlay /etc
mount -t overlay -o "lowerdir=/usr/lib,upperdir=$dir/lib,workdir=$dir/lib.work" overlay /usr/lib
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
# /tmp has the folders of the machine around it, but not those of its users' jobs.
mkdir "$dir/around"
mount -t tmpfs -o mode=1777 tmpfs "$dir/around"
for path in /tmp/*/; do
	path=${path%/}
	case $path in /tmp/ration-*) continue ;; esac
	mkdir "$dir/around${path#/tmp}"
	mount --rbind "$path" "$dir/around${path#/tmp}" 2>/dev/null || [ ! -d "$path" ] # another test may have removed it
done
mount --rbind "$dir/around" /tmp
cd "$PWD"
clean() {
	cd /
	umount -l /tmp
	umount -l "$dir"
	rmdir "$dir"
}
trap clean EXIT
rm -f /etc/ld.so.preload
cp -L "$DRIVER/libcuda.so.1" "$DRIVER/libnvidia-ml.so.1" /usr/lib
cat >>/etc/passwd <<END
anna:x:4001:4001::/:/bin/sh
ben:x:4002:4002::/:/bin/sh
carl:x:4003:4003::/:/bin/sh
END
cat >>/etc/group <<END
anna:x:4001:
ben:x:4002:
carl:x:4003:
students:x:4100:ben
teachers:x:4101:ben
END
for user in anna ben carl; do echo "$user:*:20000:0:99999:7:::"; done >>/etc/shadow
mkdir -m 755 /etc/ration
cp -L "$(command -v ration)" "$(command -v eat)" "$(command -v eat-linked)" "$dir/bin"
cp "$dir/bin/eat" "$dir/bin/eat-setuid"
chmod 4755 "$dir/bin/eat-setuid"
cp "$dir/bin/eat" "$dir/bin/eat-ben"
chown 4002 "$dir/bin/eat-ben"
chmod 4755 "$dir/bin/eat-ben"
bin=$dir/bin
PATH=$bin:$PATH
unset RATION_DIR FAKEGPU_STATE LD_LIBRARY_PATH
export TMPDIR="$dir/tmp"
# logged_in: gives the users their folders in /run/user, where root finds their jobs.
logged_in() {
	for user in anna ben carl; do
		install -d -m 700 -o "$user" -g "$user" "/run/user/$(id -u "$user")"
	done
	runtime=/run/user/
}
runtime=
# as USER COMMAND...: as sshd would start it, with nothing in the environment but what says which machine this is.
as() {
	user=$1
	shift
	env -i TMPDIR="$TMPDIR" ${runtime:+XDG_RUNTIME_DIR=$runtime$(id -u "$user")} FAKEGPU_QUIET=1 ${FAKEGPU:+FAKEGPU=$FAKEGPU} \
		${FAKEGPU_CHECKPOINT:+FAKEGPU_CHECKPOINT=$FAKEGPU_CHECKPOINT} PATH="$bin:/usr/bin:/bin" setpriv --reuid="$user" --regid="$user" --init-groups "$@"
}
# says NAME COMMAND...: its name, output and status in one line.
says() {
	name=$1
	shift
	status=0
	out=$("$@" 2>"$dir/stderr") || status=$?
	echo "$name: $(echo "$out" | tr '\n' ' ')status $status"
	sed "s/^/$name! /" "$dir/stderr"
}
# hold USER WORDS...: starts eat, which stays until drop ends it.
hold() {
	user=$1
	shift
	rm -f "$TMPDIR/ready"
	as "$user" sh -c "echo \$\$ >$TMPDIR/pid-$user; exec eat $* ready=$TMPDIR/ready pause" >"$dir/held" 2>&1 &
	eval "held_$user=$!"
	waits test -e "$TMPDIR/ready"
}
drop() {
	kill "$(cat "$TMPDIR/pid-$1")"
	eval "wait \$held_$1" || :
}
config() { cat >/etc/ration/config.toml; }
# waits COMMAND...: until it is true, or the script runs into its deadline.
waits() { until "$@" >/dev/null 2>&1; do sleep 0.02; done; }
keeper=
keep() {
	ration policy keep 2>"$dir/log" &
	keeper=$!
	waits test -S /run/ration/policy.sock
}
. "./$1"
if [ -n "$keeper" ]; then
	kill "$keeper" 2>/dev/null || :
	wait "$keeper" || :
fi
