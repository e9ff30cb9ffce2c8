# usage: nobody.sh SCRIPT [READY DONE]
# Runs a script as nobody in a job of root's, with the test programs and the stand-in driver at
# hand. With READY that file is made when the script has made the file state/ready, and the
# script's state/done when there is DONE.
dir=$(mktemp -d -p /tmp)
trap 'rm -r "$dir"' EXIT
chmod 755 "$dir"
mkdir -m 777 "$dir/state"
mkdir -m 700 "$dir/private"
: >"$dir/private/log"
cp -L "$(command -v eat)" "$(command -v eat-linked)" "$(command -v hostile)" "$1" "$dir"
mkdir "$dir/lib"
cp -L "$DRIVER/libcuda.so.1" "$DRIVER/libnvidia-ml.so.1" "$dir/lib"
chmod -R a+rX "$dir/lib" "$dir/eat" "$dir/eat-linked" "$dir/hostile" "$dir/$1"
cp "$dir/eat" "$dir/eat-setuid"
chmod 4755 "$dir/eat-setuid"
# await FILE waits for a file, or until the test is gone.
await() {
	left=3000
	until [ -e "$1" ] || [ $((left -= 1)) -lt 0 ] || [ ! -d "$dir" ]; do sleep 0.02; done
}
if [ -n "${2:-}" ]; then
	# Without the output of this one, whose end is waited for.
	{
		await "$dir/state/ready"
		: >"$2"
		await "$3"
		: >"$dir/state/done"
	} >/dev/null 2>&1 &
	waiter=$!
	trap 'kill $waiter; rm -r "$dir"' EXIT
fi
status=0
su - nobody -s /bin/sh -c "
	cd $dir && export LD_LIBRARY_PATH=$dir/lib FAKEGPU_STATE=${MACHINE:-$dir/state/gpu} FAKEGPU_QUIET=1 && sh ./$1" || status=$?
echo "log: $(wc -c <"$dir/private/log")"
[ -e "$dir/private/region" ] && echo "region: made" || echo "region: none"
exit $status
