package region

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"ration/check/expect"
	"ration/internal/abi"
)

// A saved region has what the first one had, and takes room only for pages that are not empty.
func TestSave(t *testing.T) {
	folder := t.TempDir()
	from, to := filepath.Join(folder, "region"), filepath.Join(folder, "saved")
	must(t, WriteLimitsFile(from, limited(10*MiB)))
	r, err := Open(from, Options{})
	must(t, err)
	s := claim(t, r)
	must(t, s.Charge(0, abi.Data, 4*MiB))
	expect.True(t, s.Charge(0, abi.Data, 7*MiB) != nil, "beyond the limit")
	must(t, s.Leave())
	created := r.Created()
	must(t, r.Close())

	must(t, Save(from, to))
	must(t, os.Remove(from))
	must(t, os.Remove(from+LimitsSuffix))
	saved, err := OpenReadOnly(to)
	must(t, err)
	defer saved.Close()
	refusals, err := saved.Refusals()
	must(t, err)
	limit, err := saved.Limit(0)
	must(t, err)
	processes, err := saved.Processes()
	must(t, err)
	expect.True(t, len(refusals) == 1 && refusals[0].Asked == 7*MiB && limit.Bytes() == 10*MiB && saved.Created() == created && len(processes) == 0,
		refusals, limit, saved.Created(), processes)
	var st unix.Stat_t
	must(t, unix.Stat(to, &st))
	expect.True(t, st.Size == regionSize && st.Blocks*512 < regionSize/8, "the copy takes", st.Blocks*512, "bytes of", st.Size)
	expect.True(t, Save(to, to) != nil, "over another file")
}
