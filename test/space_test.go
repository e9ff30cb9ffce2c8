package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"ration/test/harness"
)

// mounting is a shell script that runs in a mount namespace of its own, so that
// it can mount; the worker is $1 to it, the folder to mount on $2.
func mounting(t *testing.T, script, folder string) harness.Option {
	t.Helper()
	unshare := []string{"unshare", "--mount"}
	if os.Geteuid() != 0 {
		unshare = append(unshare, "--user", "--map-root-user")
	}
	try := append(unshare[:len(unshare):len(unshare)], "mount", "-t", "tmpfs", "-o", "size=8m", "none", folder)
	if out, err := exec.Command(try[0], try[1:]...).CombinedOutput(); err != nil {
		t.Skipf("no small file system to be had here: %v: %s", err, out)
	}
	return harness.Through(append(unshare, "sh", "-c", script, folder)...)
}

// A file system without room is an error when the region is made, not a fault
// when it is used; and once there is room, what the failure left is no hindrance.
func TestFullDisk(t *testing.T) {
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		folder := t.TempDir()
		path := filepath.Join(folder, "region")
		w := start(t, crew, 0, mounting(t, `
			mount -t tmpfs -o size=8m none "$0" || exit
			head -c 7m /dev/zero >"$0/fill" || exit
			"$1" || exit
			rm "$0/fill" || exit
			exec "$1"`, folder))
		for range 2 {
			if got := w.Ask("open %s 0=%d", path, mib); got.Code() != "nospace" {
				t.Fatalf("a region of several MiB in what is left of one: %s", got)
			}
		}
		w.OK("quit")
		w.OK("open %s 0=%d", path, mib)
		w.OK("claim late")
		w.OK("charge 0 data %d", mib)
		w.Quit()
	})
}

// A user's own limit on the size of files is the same: an error, not the signal
// that the kernel sends to whoever passes it.
func TestFileSizeLimit(t *testing.T) {
	harness.Crews(t, func(t *testing.T, crew harness.Crew) {
		w := start(t, crew, 0, harness.Through("sh", "-c", `ulimit -f 1024; exec "$0"`))
		w.Send("open %s 0=%d", newPath(t), mib)
		got, alive := w.Hear()
		if !alive || got.Code() != "nospace" {
			t.Errorf("alive: %v, %q", alive, got)
		}
	})
}
