package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ration/internal/job"
)

// preloadFile is read by the dynamic linker for every program.
const preloadFile = "/etc/ld.so.preload"

// preloads looks for other libraries that want to be where ours is.
func (v *visit) preloads() {
	found := 0
	text, err := os.ReadFile(preloadFile)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		v.warn("preloads", "make it readable", "%v", err)
	}
	for where, list := range map[string]string{preloadFile: string(text), "LD_PRELOAD": os.Getenv("LD_PRELOAD")} {
		for path := range strings.FieldsFuncSeq(list, func(r rune) bool { return strings.ContainsRune(" :\t\n", r) }) {
			found++
			switch filepath.Base(path) {
			case "libvgpu.so":
				v.fail("preloads", "remove it there: docs/from-hami-core.md", "%s names HAMi-core's %s: with both, everything is counted and refused twice", where, path)
			case "libration.so":
				if where == preloadFile {
					v.pass("preloads", "%s names %s: every program of this machine has it", where, path)
				}
			default:
				if _, err := os.Stat(path); err != nil && strings.Contains(path, "/") {
					v.warn("preloads", "remove it there", "%s names %s, which is not there: each program complains", where, path)
				}
			}
		}
	}
	if found == 0 {
		v.pass("preloads", "nothing else is preloaded")
	}
}

// jobs looks at all regions that are there.
func (v *visit) jobs() {
	all, err := job.List()
	if err != nil {
		v.fail("jobs", "name another folder in "+job.EnvFolder, "%v", err)
		return
	}
	sound, ended := 0, 0
	for _, j := range all {
		switch v.job(j) {
		case inOrder:
			sound++
		case hasEnded:
			ended++
		}
	}
	text := fmt.Sprintf("%d in good order", sound)
	if ended > 0 {
		text += fmt.Sprintf("; %d have ended, and are kept for ration why (--fix removes them)", ended)
	}
	v.pass("jobs", "%s", text)
}

// What is to be said about a job.
const (
	inOrder = iota
	hasEnded
	said
)

// job looks at one, and says what is wrong with it.
func (v *visit) job(j job.Job) int {
	name := "job " + j.Title()
	s := job.Read(j, job.ReadOptions{ReadOnly: !v.Fix})
	switch {
	case errors.Is(s.Err(), fs.ErrNotExist):
		return inOrder // it ended while we looked
	case s.Err() != nil:
		v.fail(name, fmt.Sprintf("end its processes, then ration rm --force %s", j.Title()), "%v", s.Err())
		return said
	case j.Name != "" && !job.Running(j) && s.Stale(time.Now()):
		if v.Fix {
			if err := job.Remove(j, false); err != nil {
				v.warn(name, "ration rm "+j.Title(), "has ended, and cannot be removed: %v", err)
				return said
			}
			v.add(Check{Name: name, Verdict: Pass, Text: "had ended, and was removed", Fixed: true})
			return said
		}
		return hasEnded
	}
	if n := len(s.Reaped); n > 0 {
		v.add(Check{Name: name, Verdict: Pass, Text: fmt.Sprintf("gave back what %d dead processes held", n), Fixed: true})
		return said
	}
	dead := 0
	for _, p := range s.Processes {
		if p.State == job.Dead {
			dead++
		}
	}
	if dead > 0 {
		v.warn(name, "nothing need be done: whoever needs it takes it back; ration ps does so at once", "%d dead processes still hold something", dead)
		return said
	}
	return inOrder
}
