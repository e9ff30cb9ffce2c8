package launch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"ration/internal/gpu"
	"ration/internal/job"
	"ration/internal/limit"
)

// preload is the dynamic linker's variable, and preloadFile its file.
const (
	preload     = "LD_PRELOAD"
	preloadFile = "/etc/ld.so.preload"
)

// others are libraries that do what ours does; two of them would count twice.
var others = []string{"libvgpu.so", "libration.so"}

// environ is what the command and its children find. Limits are not in it: the
// region has them, and a child that lost a variable loses nothing.
func (p Plan) environ(j *Job, driver *gpu.Driver) []string {
	e := environment(os.Environ())
	e.drop(func(key string) bool {
		return isLimit(key, limit.EnvMemory) || isLimit(key, limit.EnvCompute) || key == limit.EnvTolerance || key == job.EnvRegion
	})
	if driver != nil && divided(driver) {
		// Only a process knows how large its part of a device is.
		for _, setting := range p.Settings.Environ() {
			key, value, _ := strings.Cut(setting, "=")
			e.set(key, value)
		}
	}
	e.set(EnvRegion, j.inside(j.Hold.Job.Path))
	e.set(EnvJob, j.Hold.Job.Name)
	p.second("LD_PRELOAD", e.get(preload))
	if text, err := os.ReadFile(preloadFile); err == nil {
		p.second(preloadFile, string(text))
	}
	if !p.Keep {
		e.set(preload, join(e.get(preload), j.library))
	}
	if j.fakeGPU != "" {
		for key, value := range p.machine(j) {
			e.set(key, j.inside(value))
		}
		folder := j.inside(j.fakeGPU)
		e.set("LD_LIBRARY_PATH", join(folder, e.get("LD_LIBRARY_PATH")))
		e.set("PATH", strings.ReplaceAll(e.get("PATH"), j.fakeGPU, folder))
	}
	return e
}

// inside is where the command finds a file of the job or a library.
func (j *Job) inside(path string) string {
	if !j.keep {
		return path
	}
	for from, to := range map[string]string{j.Hold.Folder: WellKnown, j.libraries(): runLib} {
		if rest, ok := strings.CutPrefix(path, from+"/"); ok {
			return to + "/" + rest
		}
	}
	return path
}

// second warns of a library beside ours.
func (p Plan) second(where, list string) {
	for path := range strings.FieldsFuncSeq(list, func(r rune) bool { return strings.ContainsRune(" :\t\n", r) }) {
		if slices.Contains(others, filepath.Base(path)) {
			p.Warn(where + " names " + path + " too: both will count, and refuse (remove it there)")
		}
	}
}

func isLimit(key, name string) bool { return key == name || strings.HasPrefix(key, name+"_") }

// join puts two lists together, without the empty element that would mean the
// current folder.
func join(first, second string) string {
	if first == "" || second == "" {
		return first + second
	}
	return first + ":" + second
}

// environment is a process's, in the form of os.Environ.
type environment []string

func (e *environment) drop(which func(key string) bool) {
	*e = slices.DeleteFunc(*e, func(entry string) bool {
		key, _, _ := strings.Cut(entry, "=")
		return which(key)
	})
}

func (e *environment) get(key string) string {
	for _, entry := range *e {
		if k, value, _ := strings.Cut(entry, "="); k == key {
			return value
		}
	}
	return ""
}

func (e *environment) set(key, value string) {
	e.drop(func(k string) bool { return k == key })
	*e = append(*e, key+"="+value)
}
