package node

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"ration/check/expect"
)

// hostileCommand makes the test's own program one that runs in a pod.
const hostileCommand = "hostile"

// handOver is the socket by which one pod hands its region to another. Pods of the node's network share abstract names.
const handOver = "@ration-e2e-hand-over"

// hostileRegion is where a container has the region of its claim.
const hostileRegion = "/run/ration/job/region"

// hostile is what the test's own program does in a pod: keep takes a region of another pod, locks all of it and stays, and
// give hands over its own.
func hostile(what string) error {
	switch what {
	case "keep":
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: handOver, Net: "unix"})
		if err != nil {
			return err
		}
		conn, err := listener.AcceptUnix()
		if err != nil {
			return err
		}
		rights := make([]byte, unix.CmsgSpace(4))
		_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), rights)
		if err != nil {
			return err
		}
		messages, err := unix.ParseSocketControlMessage(rights[:n])
		if err != nil || len(messages) != 1 {
			return errors.Join(err, errors.New("no region came"))
		}
		files, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return err
		}
		all := unix.Flock_t{Type: unix.F_WRLCK}
		if err := unix.FcntlFlock(uintptr(files[0]), unix.F_OFD_SETLK, &all); err != nil {
			return fmt.Errorf("locking the region: %w", err)
		}
		if _, err := conn.Write([]byte("locked")); err != nil {
			return err
		}
		select {}
	case "give":
		file, err := os.OpenFile(hostileRegion, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: handOver, Net: "unix"})
		if err != nil {
			return err
		}
		if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(int(file.Fd())), nil); err != nil {
			return err
		}
		_, err = conn.Read(make([]byte, 8))
		return err
	}
	return fmt.Errorf("%s: not known", what)
}

// hostilePod returns a pod that has the test's own program, as /hostile.
func (w *world) hostilePod(name, claim string, containers ...string) *corev1.Pod {
	w.Helper()
	folder := filepath.Join(Folder, "hostile")
	program, err := os.ReadFile("/proc/self/exe")
	w.must(err)
	w.must(os.MkdirAll(folder, 0o755))
	w.must(os.WriteFile(filepath.Join(folder, "run"), program, 0o755))
	pod := w.podFor(name, claim, containers...)
	pod.Spec.Volumes = []corev1.Volume{
		{Name: "hostile", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: folder}}},
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].VolumeMounts = []corev1.VolumeMount{{Name: "hostile", MountPath: "/hostile"}, {Name: "tmp", MountPath: "/tmp"}}
	}
	return pod
}

// A pod that writes its region full, cuts it, makes it larger, is refused without end, under names that are no names, and hands its region to
// a pod that keeps all of it locked: the plugin goes on, other pods come and go with their rations, and what the hostile one had goes
// with it.
func TestHostile(t *testing.T) {
	w := newWorld(t)
	train := driver + "fake-train"
	plugin := here.running[pluginName].PID()
	w.makeClaim("hostile", "10Gi")
	w.makeClaim("friend", "5Gi")
	w.makeClaim("other", "5Gi")
	attacker := w.hostilePod("hostile", "hostile", "one", "root")
	attacker.Spec.Containers[1].SecurityContext.RunAsUser = new(int64)
	w.makePod(attacker)
	friend := w.hostilePod("friend", "friend", "one")
	friend.Spec.Containers[0].Command = []string{"/hostile/run", hostileCommand, "keep"}
	w.makePod(friend)
	pod := w.runs("hostile")
	w.runs("friend")

	// What it is refused is an event of its own pod, in one line.
	w.gives(pod, "one", 0, "", "sh", "-c", `name=$(printf '/tmp/a\nb\033[2J\342\200\256c') && busybox cp `+train+` "$name" && for i in $(busybox seq 300); do "$name" 11g && exit 1; done >/dev/null 2>&1; test -e "$name"`)
	w.eventually("an event of a refusal", func() error {
		if events := w.events("hostile"); !strings.Contains(events, "GPUMemoryRefused") {
			return fmt.Errorf("events: %s", events)
		}
		return nil
	})
	for line := range strings.SplitSeq(w.events("hostile"), "\n") {
		expect.True(t, !strings.ContainsAny(line, "\x1b\u202e") && !strings.HasPrefix(line, "b"), "an event has characters that are not shown:", line)
	}

	// Root of a container is no operator.
	for _, attack := range []string{
		"echo 1 >/run/ration/job/region.limits", "echo 1 >/run/ration/job/created", "rm -f /run/ration/job/created", "umount /run/ration/job/region.limits",
		"echo >/etc/ld.so.preload", "umount /etc/ld.so.preload", "mount -t tmpfs none /run/ration",
	} {
		w.gives(pod, "root", 1, "", "sh", "-c", attack)
	}
	w.gives(pod, "root", 1, "", train, "11g")

	w.eventually("the friend to keep the region", func() error {
		out, code, err := Exec(w.ctx, pod, "one", "/hostile/run", hostileCommand, "give")
		if err == nil && code != 0 {
			err = errors.New(out)
		}
		return err
	})

	// No more of the node's memory than a region has.
	w.gives(pod, "one", 1, "", "busybox", "dd", "if=/dev/zero", "of="+hostileRegion, "bs=1M", "seek=4", "count=64")
	w.gives(pod, "one", 1, "", "busybox", "dd", "if=/dev/zero", "of=/run/ration/job/large", "bs=1M", "count=64")
	for _, attack := range []string{
		"for i in 1 2 3; do busybox dd if=/dev/urandom of=" + hostileRegion + " bs=64k conv=notrunc; busybox truncate -s 0 " + hostileRegion + "; busybox truncate -s 100 " + hostileRegion + "; done; true",
		"busybox dd if=/dev/urandom of=" + hostileRegion + " bs=64k count=60 conv=notrunc; true",
	} {
		w.gives(pod, "one", 0, "", "sh", "-c", attack+" 2>/dev/null")
		w.makePod(w.podFor("other", "other", "one"))
		other := w.runs("other")
		w.gives(other, "one", 0, "", train, "4g")
		w.gives(other, "one", 1, "", train, "6g")
		w.delete("other")
		w.gone("other")
	}

	w.delete("hostile")
	w.gone("hostile")
	w.eventually("nothing of the hostile pod to be left", func() error {
		if files := Claims(); len(files) != 3 { // record, spec and job of the friend
			return fmt.Errorf("%v", files)
		}
		return nil
	})
	w.delete("friend")
	w.gone("friend")
	w.nothingLeft()
	_, err := os.Stat(fmt.Sprint("/proc/", plugin))
	expect.True(t, err == nil && here.running[pluginName].PID() == plugin, "the plugin has ended", err)
}
