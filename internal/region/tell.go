package region

import (
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"ration/internal/abi"
	"ration/internal/safepath"
)

// Tell marks processes of a region before somebody tells them to end: their ends are then no deaths, or without forGood only
// if they are reaped soon. The region is the file name in the folder dir, of any owner, and path is for messages. Its content
// is only a claim, so it is not mapped: it is read as OpenReadOnlyAt does, and 8 bytes are written for each of these processes.
func Tell(dir int, name, path string, forGood bool, which func(Process) bool) error {
	r, err := OpenReadOnlyAt(dir, name, path)
	if err != nil {
		return err
	}
	defer r.Close()
	all, err := r.Processes()
	if err != nil {
		return err
	}
	fd, err := safepath.OpenAt(dir, name, unix.O_RDWR, 0)
	if err != nil {
		return openError(path, err)
	}
	f, err := adopt(fd, path, true)
	if err != nil {
		return err
	}
	defer f.close()
	var st unix.Stat_t
	if err := unix.Fstat(f.number(), &st); err != nil || f.key != r.file.key || st.Nlink != 1 {
		return fmt.Errorf("region %s: it was replaced, or has another name: %w", path, ErrDamaged)
	}
	for _, p := range all {
		if !which(p) {
			continue
		}
		// By now the slot may have another owner: the mark is not that one's.
		var at int64
		if !forGood {
			at = time.Now().Unix()
		}
		told := abi.MakeTold(abi.Status(r.m.Status[p.Slot]).Gen(), at)
		if _, err := unix.Pwrite(f.number(), binary.LittleEndian.AppendUint64(nil, uint64(told)), toldAt(p.Slot)); err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
	}
	return nil
}
