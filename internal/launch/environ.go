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

// Lists of libraries that the dynamic linker preloads.
const (
	PreloadVariable = "LD_PRELOAD"
	PreloadFile     = "/etc/ld.so.preload"
	// PolicyLibrary is the library that a policy names in that file, for every program. If a
	// program has a second copy of the library too, that copy counts nothing: the first one calls
	// the driver directly.
	PolicyLibrary = "/usr/lib/ration/policy/libration.so"
)

// SplitPreloads returns the libraries in a list of preloads.
func SplitPreloads(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(" :\t\n", r) })
}

// rationing lists libraries that count memory. With two of them memory would be counted twice.
var rationing = []string{"libvgpu.so", "libration.so"}

// environ returns the command's environment. It does not contain the limits, which are in the
// region, so that a child that loses a variable still has them.
func (p Plan) environ(j *Job, driver *gpu.Driver) []string {
	e := environment(os.Environ())
	e.drop(func(key string) bool { return limit.IsVariable(key) || key == job.EnvRegion || key == EnvCreated })
	if driver != nil && hasMIG(driver) {
		// Only a process can find out the size of its MIG device.
		for _, setting := range p.Settings.Environ() {
			key, value, _ := strings.Cut(setting, "=")
			e.set(key, value)
		}
	}
	if p.Placed != "" {
		e.drop(func(key string) bool { return key == visibleDevices }) // the choice was among its devices
	}
	e.set(EnvRegion, j.pathInside(j.Lock.Job.Path))
	e.set(EnvJob, j.Lock.Job.Name)
	if p.SleepFast {
		e.set(EnvSleepFast, "1")
	}
	p.warnOfRationing(PreloadVariable, e.get(PreloadVariable))
	if text, err := os.ReadFile(PreloadFile); err == nil {
		p.warnOfRationing(PreloadFile, string(text))
	}
	if !p.Keep {
		e.set(PreloadVariable, joinPaths(e.get(PreloadVariable), j.library))
	}
	if j.fakeGPU != "" {
		for key, value := range p.fakeEnviron(j) {
			e.set(key, j.pathInside(value))
		}
		folder := j.pathInside(j.fakeGPU)
		e.set("LD_LIBRARY_PATH", joinPaths(folder, e.get("LD_LIBRARY_PATH")))
		e.set("PATH", strings.ReplaceAll(e.get("PATH"), j.fakeGPU, folder))
	}
	return e
}

// pathInside returns the path of a job's file or of a library as the command sees it. It differs if
// the command has a mount namespace of its own.
func (j *Job) pathInside(path string) string {
	if !j.keep {
		return path
	}
	for from, to := range map[string]string{j.Lock.Folder: job.WellKnown, j.libraryFolder(): LibraryFolder} {
		if rest, ok := strings.CutPrefix(path, from+"/"); ok {
			return to + "/" + rest
		}
	}
	return path
}

// warnOfRationing warns if a list of preloads contains another library that counts memory.
func (p Plan) warnOfRationing(where, list string) {
	for _, path := range SplitPreloads(list) {
		if slices.Contains(rationing, filepath.Base(path)) && path != PolicyLibrary {
			p.Warn(where + " names " + path + " too: both will count, and refuse (remove it there)")
		}
	}
}

// joinPaths joins two lists of paths. It avoids an empty element, which would mean the current
// folder.
func joinPaths(first, second string) string {
	if first == "" || second == "" {
		return first + second
	}
	return first + ":" + second
}

// environment is a process's environment, in the form of os.Environ.
type environment []string

func (e *environment) drop(match func(key string) bool) {
	*e = slices.DeleteFunc(*e, func(entry string) bool {
		key, _, _ := strings.Cut(entry, "=")
		return match(key)
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
