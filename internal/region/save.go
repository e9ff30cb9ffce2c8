package region

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime/debug"

	"ration/internal/abi"
	"ration/internal/safepath"
)

// Save copies the region of a job that has ended, and the limits beside it, to another folder, in which neither exists.
// It first returns the memory of dead processes, so that the copy has their deaths and no process. It is an error if a
// process uses the region: the copy would show that process as dead.
func Save(from, to string) (err error) {
	r, err := Open(from, Options{NoCreate: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	if _, err := r.Reap(); err != nil {
		return err
	}
	if safepath.Exists(to) {
		return fmt.Errorf("saving region %s: %w", from, os.ErrExist)
	}
	if Locked(from) {
		return fmt.Errorf("saving region %s: %w", from, ErrUsed)
	}
	if r.limitsMem != nil { // first: a region without them cannot be read
		if err := safepath.Replace(to+LimitsSuffix, bytes.Clone(r.limitsMem[:limitsSize]), 0o600); err != nil {
			return fmt.Errorf("saving the limits of region %s: %w", from, err)
		}
	}
	// This process may be killed at any moment: the copy is complete, or not there.
	copied, err := safepath.StageBy(to, 0o600, r.writeTo)
	if err == nil {
		defer copied.Close()
		err = copied.Place()
	}
	if err != nil {
		return fmt.Errorf("saving region %s: %w", from, err)
	}
	return nil
}

// writeTo writes the region's pages to an empty file, without those that are all zero.
func (r *Region) writeTo(f *os.File) (err error) {
	defer r.guard(&err, debug.SetPanicOnFault(true))
	if err := f.Truncate(int64(len(r.mem))); err != nil {
		return err
	}
	empty := make([]byte, abi.PageSize)
	for at := 0; at < len(r.mem); at += abi.PageSize {
		page := bytes.Clone(r.mem[at : at+abi.PageSize])
		if bytes.Equal(page, empty) {
			continue
		}
		if _, err := f.WriteAt(page, int64(at)); err != nil {
			return err
		}
	}
	return nil
}
