package observer

import (
	"encoding/binary"
	"os"

	"ration/internal/region"
)

// WriteCompute writes a process's use of a device's time into a region's file, as the library does
// in C, and the same as the job's use. Closing the file drops the locks that this process has on
// it.
func WriteCompute(f *os.File, device, slot int, c region.ProcessCompute) error {
	for _, word := range []struct {
		value uint64
		field []any
	}{
		{uint64(c.Work), []any{"Accounts", device, slot, "Work"}},
		{uint64(c.Slice), []any{"Accounts", device, slot, "Slice"}},
		{c.Used, []any{"Accounts", device, slot, "TimeUsed"}},
		{c.Waited, []any{"Accounts", device, slot, "TimeWaited"}},
		{c.Used, []any{"Compute", device, "Used"}},
		{c.Waited, []any{"Compute", device, "Waited"}},
	} {
		if _, err := f.WriteAt(binary.NativeEndian.AppendUint64(nil, word.value), Offset(word.field...)); err != nil {
			return err
		}
	}
	return nil
}
