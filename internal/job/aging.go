package job

import (
	"io/fs"
	"os"
	"path/filepath"
)

// keepFromAging protects the files of a job in /tmp from systemd-tmpfiles, which removes there what nobody has read or written
// for ten days or so: a job may run for longer, and processes that it starts then need its files. It removes no file with the
// sticky bit, which has no other meaning for files. The package's tmpfiles.conf excludes the folder as well, but
// ration works without the package. A file that cannot be changed is left as it is: the job works without.
func keepFromAging(folder string) {
	if os.Geteuid() == 0 { // root's jobs are in no such folder, and others may write in it
		return
	}
	_ = filepath.WalkDir(folder, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil
		}
		if st, err := e.Info(); err == nil {
			_ = os.Chmod(path, st.Mode()|os.ModeSticky)
		}
		return nil
	})
}
