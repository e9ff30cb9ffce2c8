package cli

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"ration/check/observer"
)

// silentFS is a FUSE file system with one file, "file". Reads of it get an error at first, and then no answer until
// the process that serves it ends.
type silentFS struct {
	device int
	reads  int
	mute   bool // it answers nothing but the first question
}

// maxRefused is how many reads get an error. With the third the kernel keeps the lock on the reader's memory.
const maxRefused = 2

// mountSilent mounts a file system over a folder, and starts a process that serves it. The caller is root in a user
// namespace and a mount namespace of its own. device is a node like /dev/fuse.
func mountSilent(device, at string) error {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), device)
	defer f.Close()
	options := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd)
	if err := unix.Mount("silent", at, "fuse", 0, options); err != nil {
		return fmt.Errorf("mounting FUSE: %w", err)
	}
	server := exec.Command("/proc/self/exe")
	server.Args = []string{"hostile", "serve"}
	server.ExtraFiles = []*os.File{f}
	return server.Start()
}

// mayMountFUSE reports whether an ordinary user can mount FUSE here, in a user namespace.
func mayMountFUSE(t *testing.T) bool {
	const try = `mount -t tmpfs -o mode=777 tmpfs "$1"; mknod -m 666 "$1/fuse" c 10 229; mkdir "$1/at"
		setpriv --reuid=4001 --regid=4001 --clear-groups unshare -Urm --propagation private sh -ec '
			exec 3<>"$1/fuse"; mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 silent "$1/at"' sh "$1"`
	out, err := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-ec", try, "sh", "/mnt").CombinedOutput()
	if err != nil {
		t.Logf("no FUSE can be tried here: %v, %s", err, out)
	}
	return err == nil
}

// Operations of the kernel's protocol, and the error for the others.
const (
	fuseLookup  = 1
	fuseGetattr = 3
	fuseOpen    = 14
	fuseRead    = 15
	fuseInit    = 26
	fuseOpendir = 27
)

// fuseAttr is struct fuse_attr.
type fuseAttr struct {
	Ino, Size, Blocks, Atime, Mtime, Ctime                                    uint64
	AtimeN, MtimeN, CtimeN, Mode, Nlink, UID, GID, Rdev, BlockSize, AttrFlags uint32
}

const silentSize = 1 << 20

func attrOf(node uint64) fuseAttr {
	a := fuseAttr{Ino: node, Size: silentSize, Mode: unix.S_IFREG | 0o777, Nlink: 1, BlockSize: 4096}
	if node == 1 {
		a.Mode = unix.S_IFDIR | 0o777
	}
	return a
}

func (s *silentFS) serve() error {
	buf := make([]byte, 1<<20)
	for {
		n, err := unix.Read(s.device, buf)
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil || n < 40 {
			return err
		}
		op, unique, node := binary.NativeEndian.Uint32(buf[4:]), binary.NativeEndian.Uint64(buf[8:]), binary.NativeEndian.Uint64(buf[16:])
		const valid = 3600
		var answer any
		errno := unix.Errno(0)
		if s.mute && op != fuseInit {
			continue
		}
		switch op {
		case fuseRead:
			if s.reads++; s.reads > maxRefused {
				continue // for ever
			}
			errno = unix.EIO
		case fuseInit:
			answer = [16]uint32{7, 31, 65536, 0, 12 | 10<<16, 65536, 1}
		case fuseLookup:
			if name, _, _ := strings.Cut(string(buf[40:n]), "\x00"); name == "file" {
				answer = struct {
					Node, Generation, Valid, AttrValid uint64
					Nano                               [2]uint32
					Attr                               fuseAttr
				}{Node: 2, Valid: valid, AttrValid: valid, Attr: attrOf(2)}
			} else {
				errno = unix.ENOENT
			}
		case fuseGetattr:
			answer = struct {
				Valid uint64
				Nano  [2]uint32
				Attr  fuseAttr
			}{Valid: valid, Attr: attrOf(node)}
		case fuseOpen, fuseOpendir:
			answer = [4]uint32{}
		default:
			errno = unix.ENOSYS
		}
		var body, out bytes.Buffer
		if answer != nil {
			_ = binary.Write(&body, binary.NativeEndian, answer)
		}
		_ = binary.Write(&out, binary.NativeEndian, struct {
			Len    uint32
			Error  int32
			Unique uint64
		}{uint32(16 + body.Len()), -int32(errno), unique})
		out.Write(body.Bytes())
		_, _ = unix.Write(s.device, out.Bytes())
	}
}

// attackSilent joins the job with a process whose list of mappings the kernel keeps locked: one thread waits for a page
// of the silent file, with the lock for reading, and another for the lock, to map something. Who reads
// /proc/PID/maps or cmdline waits behind them.
func attackSilent(region, device, ready string) error {
	at, err := os.MkdirTemp("", "silent")
	if err != nil {
		return err
	}
	f, err := os.OpenFile(region, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	t := tenantFile{f}
	for slot := range 4 {
		err = errors.Join(err, t.lock(observer.Offset("Slots", slot)), t.slot(slot, uint64(os.Getpid()), 4001, 1, "another"), t.word(4, "Header", "HighWater"))
	}
	if err := errors.Join(err, mountSilent(device, at)); err != nil {
		return err
	}
	fd, err := unix.Open(filepath.Join(at, "file"), unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	page, err := unix.Mmap(fd, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if err := os.WriteFile(ready, []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	go func() {
		time.Sleep(time.Second)
		_, _ = unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	}()
	// The kernel reads the page, not this program: the runtime cannot stop a thread that waits for a page, and the other
	// would not get to run while it tries (for the garbage collector, which runs more often under the race detector).
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	n, err := unix.Write(int(w.Fd()), page[:1])
	return fmt.Errorf("the page came: %d, %w", n, err)
}
