//go:build cgo

package gpu

import (
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// library is NVML of a path. Package nvml changes its own variables when it loads and closes a library. So the goroutines
// that use one path share one, which the first loads and the last closes.
type library struct {
	path string
	open nvml.Interface // guarded by libraries.mu
	used int            // guarded by libraries.mu
}

var libraries struct {
	mu  sync.Mutex // also held while NVML starts and ends
	all map[string]*library
}

func libraryOf(path string) *library {
	libraries.mu.Lock()
	defer libraries.mu.Unlock()
	if libraries.all == nil {
		libraries.all = map[string]*library{}
	}
	if libraries.all[path] == nil {
		libraries.all[path] = &library{path: path}
	}
	return libraries.all[path]
}

// start returns NVML, and starts it for the first caller. end must be called as often as start succeeded.
func (l *library) start() (nvml.Interface, error) {
	libraries.mu.Lock()
	defer libraries.mu.Unlock()
	if l.used == 0 {
		var opts []nvml.LibraryOption
		if l.path != "" {
			opts = append(opts, nvml.WithLibraryPath(l.path))
		}
		l.open = nvml.New(opts...)
		if ret := l.open.Init(); ret != nvml.SUCCESS {
			return nil, noDriver(ret)
		}
	}
	l.used++
	return l.open, nil
}

func (l *library) end() {
	libraries.mu.Lock()
	defer libraries.mu.Unlock()
	if l.used--; l.used == 0 {
		_ = l.open.Shutdown() // the caller could not do anything about an error
	}
}
