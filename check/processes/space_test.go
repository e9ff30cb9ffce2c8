package processes

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// mounting starts a worker through a shell script in a mount namespace of its own, in
// which it may mount a file system. $0 is the folder to mount on, $1 the worker.
func mounting(t *testing.T, script, folder string) option {
	t.Helper()
	unshare := []string{"unshare", "--mount"}
	if os.Geteuid() != 0 {
		unshare = append(unshare, "--user", "--map-root-user")
	}
	try := append(unshare[:len(unshare):len(unshare)], "mount", "-t", "tmpfs", "-o", "size=8m", "none", folder)
	if out, err := exec.Command(try[0], try[1:]...).CombinedOutput(); err != nil {
		t.Skipf("cannot mount a small file system: %v: %s", err, out)
	}
	return through(append(unshare, "sh", "-c", script, folder)...)
}

// A full file system is an error when the region is made, not a fault when it is used;
// and once there is room, the region can be made.
func TestFullDisk(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		folder := t.TempDir()
		path := filepath.Join(folder, "region")
		w := start(t, mix, 0, mounting(t, `
			mount -t tmpfs -o size=8m none "$0" || exit
			head -c 7m /dev/zero >"$0/fill" || exit
			"$1" || exit
			rm "$0/fill" || exit
			exec "$1"`, folder))
		for range 2 {
			w.Ask("open %s 0=%d", path, mib).want("nospace", "a region of several MiB in what is left of one")
		}
		w.OK("quit")
		w.join(path, "late", mib)
		w.OK("charge 0 data %d", mib)
		w.Quit()
	})
}

// A limit on the size of files is an error as well, not the signal that the kernel
// sends.
func TestFileSizeLimit(t *testing.T) {
	eachMix(t, func(t *testing.T, mix impls) {
		w := start(t, mix, 0, through("sh", "-c", `ulimit -f 1024; exec "$0"`))
		w.Ask("open %s 0=%d", newPath(t), mib).want("nospace", "a region larger than a file may be")
	})
}
