package region

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/check/testenv"
	"ration/internal/abi"
)

func TestFilesThatAreNoRegion(t *testing.T) {
	made := func(t *testing.T, change func(b []byte) []byte) string {
		path := filepath.Join(t.TempDir(), "region")
		r, err := Open(path, Options{})
		must(t, err)
		must(t, r.Close())
		b, err := os.ReadFile(path)
		must(t, err)
		must(t, os.WriteFile(path, change(b), 0o600))
		return path
	}
	for _, c := range []struct {
		name string
		path func(t *testing.T) string
		want error
		says string
	}{
		{"text", func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "notes")
			must(t, os.WriteFile(path, []byte("dear diary"), 0o600))
			return path
		}, ErrForeign, "remove"},
		{"another magic", func(t *testing.T) string {
			return made(t, func(b []byte) []byte { b[0]++; return b })
		}, ErrForeign, "remove"},
		{"another version", func(t *testing.T) string {
			return made(t, func(b []byte) []byte { binary.LittleEndian.PutUint32(b[8:], 99); return b })
		}, ErrVersion, "version 99, this program needs 5"},
		{"cut short", func(t *testing.T) string {
			return made(t, func(b []byte) []byte { return b[:len(b)/2] })
		}, ErrSize, "bytes where"},
		{"a page too long", func(t *testing.T) string {
			return made(t, func(b []byte) []byte { return append(b, make([]byte, 4096)...) })
		}, ErrSize, "bytes where"},
		{"cut short and made longer again", func(t *testing.T) string {
			return made(t, func(b []byte) []byte { clear(b[len(b)/2:]); return b })
		}, ErrDamaged, "remove"},
		{"header lost", func(t *testing.T) string {
			return made(t, func(b []byte) []byte { clear(b[:4096]); b[20480] = 1; return b })
		}, ErrForeign, "its header is empty, the rest is not"},
		{"a directory", func(t *testing.T) string { return t.TempDir() }, ErrNotRegular, "name a file"},
		{"a pipe", func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "pipe")
			must(t, unix.Mkfifo(path, 0o600))
			return path
		}, ErrNotRegular, "name a file"},
		{"a symbolic link", func(t *testing.T) string {
			path := filepath.Join(t.TempDir(), "link")
			must(t, os.Symlink(made(t, bytes.Clone), path))
			return path
		}, ErrSymlink, "name the file itself"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := c.path(t)
			content := func() (b []byte) {
				if c.want != ErrNotRegular {
					b, _ = os.ReadFile(path)
				}
				return b
			}
			before := content()
			r, err := Open(path, Options{})
			if err == nil {
				_ = r.Close()
			}
			expect.True(t, errors.Is(err, c.want) && strings.Contains(err.Error(), c.says) && strings.Contains(err.Error(), path),
				"opening", err)
			_, err = OpenReadOnly(path)
			expect.True(t, err != nil, "viewing went well")
			expect.True(t, bytes.Equal(before, content()), "the file was touched")
		})
	}
}

func TestAnotherUsersRegion(t *testing.T) {
	testenv.NeedsRoot(t, "only root can give a file away")
	path := filepath.Join(t.TempDir(), "region")
	r, err := Open(path, Options{})
	must(t, err)
	must(t, r.Close())
	must(t, os.Chown(path, 12345, 12345))
	if _, err := Open(path, Options{}); !errors.Is(err, ErrOwner) {
		t.Errorf("a planted file: %v", err)
	}
	r, err = Open(path, Options{AnyOwner: true})
	must(t, err)
	must(t, r.Close())
	r, err = OpenReadOnly(path)
	must(t, err)
	must(t, r.Close())
}

func TestCutShortWhileMapped(t *testing.T) {
	testenv.NeedFaultAddress(t)
	for _, c := range []struct {
		name string
		to   []int64
	}{
		{"to nothing", []int64{0}},
		{"to half", []int64{regionSize / 2}},
		{"to nothing and back", []int64{0, regionSize}},
		{"by a page and back", []int64{regionSize - 4096, regionSize}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := open(t, 10*MiB)
			s := claim(t, r)
			must(t, s.Charge(0, abi.Data, MiB))
			v, err := OpenMapped(r.Path())
			must(t, err)
			defer v.Close()
			copied, err := OpenForLimits(r.Path())
			must(t, err)
			defer copied.Close()
			for _, size := range c.to {
				must(t, os.Truncate(r.Path(), size))
			}
			_, reap := r.Reap()
			_, holdings := v.Holdings(0, nil)
			_, processes := v.Processes()
			_, refusals := v.Refusals()
			_, limit := r.Limit(0)
			_, counters := r.Counters()
			_, claimed := r.Claim("late")
			for what, err := range map[string]error{
				"charge": s.Charge(0, abi.Data, MiB), "return": s.Return(0, abi.Data, MiB), "limit set": r.SetLimit(0, abi.Unlimited),
				"reap": reap, "holdings": holdings, "processes": processes, "refusals": refusals,
				"limit": limit, "counters": counters, "claim": claimed, "leave": s.Leave(),
			} {
				expect.True(t, errors.Is(err, ErrDamaged), what, err)
			}
			// Who has a copy reads on, and finds out at the next look.
			h, err := copied.Holdings(0, nil)
			expect.True(t, err == nil && len(h) == 1, "a copy has", h, err)
			err = copied.Refresh()
			expect.True(t, errors.Is(err, ErrSize) || errors.Is(err, ErrDamaged), "copying it again", err)
		})
	}
}

func TestFullFileSystem(t *testing.T) {
	var before unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &before))
	// Beyond RLIMIT_FSIZE the kernel sends SIGXFSZ, which Go ignores, and says EFBIG.
	must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 1 << 20, Max: before.Max}))
	defer func() { must(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &before)) }()
	_, err := Open(filepath.Join(t.TempDir(), "region"), Options{})
	expect.True(t, errors.Is(err, ErrNoSpace), "making a region where it does not fit", err)
}

func TestOneDescriptorForOneFile(t *testing.T) {
	r := open(t, MiB)
	s := claim(t, r)
	again, err := Open(r.Path(), Options{})
	must(t, err)
	v, err := OpenReadOnly(r.Path())
	must(t, err)
	expect.True(t, r.file == again.file && r.file == v.file, "a second descriptor: closing it would drop the locks of the first")
	must(t, again.Close())
	must(t, v.Close())
	must(t, s.Charge(0, abi.Data, 1))
	must(t, s.Leave())
}

func TestNothingIsMadeByLooking(t *testing.T) {
	path := filepath.Join(t.TempDir(), "region")
	_, err := OpenReadOnly(path)
	expect.True(t, errors.Is(err, fs.ErrNotExist), "viewing nothing", err)
	_, err = Open(path, Options{NoCreate: true})
	expect.True(t, errors.Is(err, fs.ErrNotExist), "opening nothing", err)
	_, err = os.Lstat(path)
	expect.True(t, errors.Is(err, fs.ErrNotExist), "a file was made", err)
	r := open(t, MiB)
	v, err := OpenReadOnly(r.Path())
	must(t, err)
	defer v.Close()
	_, err = v.Claim("x")
	expect.True(t, errors.Is(err, ErrReadOnly), "claiming through a view", err)
	_, err = v.Reap()
	expect.True(t, errors.Is(err, ErrReadOnly), "reaping through a view", err)
	err = v.SetLimit(0, abi.Unlimited)
	expect.True(t, errors.Is(err, ErrReadOnly), "setting a limit through a view", err)
}
