package launch

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// EnvLogFile names the file to which the library writes its log (shim/log.c).
const EnvLogFile = "RATION_LOG_FILE"

// CheckLogFile returns an error if the library cannot open its log file. It makes no file. Of a name with a % only the
// part before it is checked, since the library fills in the rest.
func CheckLogFile() error {
	path := os.Getenv(EnvLogFile)
	if path == "" {
		return nil
	}
	fixed, _, filledIn := strings.Cut(path, "%")
	st, err := os.Stat(path)
	switch {
	case filledIn || err != nil:
		folder, _ := filepath.Split(fixed)
		err = unix.Access(filepath.Clean(folder), unix.W_OK|unix.X_OK)
	case st.IsDir():
		err = unix.EISDIR
	default:
		err = unix.Access(path, unix.W_OK)
	}
	if err != nil {
		return fmt.Errorf("%s=%s: %w (while it cannot be opened, the library's lines go to standard error)", EnvLogFile, path, err)
	}
	return nil
}
