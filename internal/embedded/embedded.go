// Package embedded contains the C parts of ration, and unpacks them: the library that is preloaded
// into CUDA programs, the stand-in driver, the probe of ration doctor, the program of the demo and
// the self-test, and the worker of the benchmarks.
//
// Each bundle of files is unpacked into a folder named by a checksum of its content, so that another
// version of ration never changes a file that a running job has mapped. A rename puts a complete
// folder in place, so any number of processes may unpack at once. An existing folder is used only
// if its files equal those in the binary, byte for byte.
package embedded

import (
	"embed"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path"
	"sync"
)

// ErrNotBuilt is returned if this ration was built without its C parts.
var ErrNotBuilt = errors.New("this ration was built without its library (run make)")

//go:embed files
var embedded embed.FS

// Bundle is a set of files that are unpacked together.
type Bundle struct {
	Name  string
	files []string
	from  fs.FS // nil for the binary itself
}

// The bundles in the binary.
var (
	Ration      = Bundle{Name: "ration", files: []string{"libration.so"}}
	FakeGPU     = Bundle{Name: "fakegpu", files: []string{"libcuda.so.1", "libnvidia-ml.so.1", "fake-smi", "fake-train"}}
	Probe       = Bundle{Name: "probe", files: []string{"probe"}}
	Workload    = Bundle{Name: "workload", files: []string{"workload"}}
	BenchWorker = Bundle{Name: "benchworker", files: []string{"benchworker"}}
)

// content is the files of a bundle. They are read in pieces, because a copy of the library costs more time than
// reading it.
type content struct {
	id    string // a checksum of all files, and their size
	from  fs.FS
	files []string
}

// open opens a file of the bundle.
func (c content) open(name string) (fs.File, error) { return c.from.Open(path.Join("files", name)) }

// contents has the binary's own bundles, by name, once they were read: a program that makes many jobs
// does not read them for each.
var contents sync.Map

// read reads a bundle from the binary.
func (b Bundle) read() (content, error) {
	if b.from != nil {
		return b.readFrom(b.from)
	}
	if known, ok := contents.Load(b.Name); ok {
		return known.(content), nil
	}
	c, err := b.readFrom(embedded)
	if err == nil {
		contents.Store(b.Name, c)
	}
	return c, err
}

func (b Bundle) readFrom(from fs.FS) (content, error) {
	c := content{from: from, files: b.files}
	// It only has to tell versions apart, because the files are compared. A cryptographic hash would take a tenth of the
	// time of ration create.
	sum, size := crc32.NewIEEE(), int64(0)
	for _, name := range b.files {
		n, err := c.copyTo(sum, name)
		size += n
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return content{}, fmt.Errorf("looking for %s: %w", name, ErrNotBuilt)
		case err != nil:
			return content{}, fmt.Errorf("looking for %s: %w", name, err)
		}
	}
	c.id = fmt.Sprintf("%08x%08x", sum.Sum32(), size)
	return c, nil
}

func (c content) copyTo(w io.Writer, name string) (size int64, err error) {
	f, err := c.open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return io.Copy(w, f)
}

// Built returns ErrNotBuilt if the binary does not have the bundle.
func (b Bundle) Built() error {
	_, err := b.read()
	return err
}
