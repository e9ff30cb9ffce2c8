package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"ration/internal/embedded"
	"ration/internal/launch"
)

// Library is what `ration library --json` prints.
type Library struct {
	Path string `json:"path"`
}

func newLibraryCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "library",
		Short: "Print the path of the library, for LD_PRELOAD",
		Long: `Print the path of the library, for LD_PRELOAD. It is unpacked first, if
necessary. This is for users who set up the environment of their programs
themselves, as with HAMi-core. ration run does it for you.`,
		Example: "  LD_PRELOAD=$(ration library) CUDA_DEVICE_MEMORY_LIMIT=10g python train.py",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := launch.CheckGlibc(); err != nil {
				return err
			}
			dir, err := embedded.Ration.Unpack()
			if err != nil {
				return err
			}
			l := Library{filepath.Join(dir, "libration.so")}
			return a.print(l, func() { a.out.printf("%s\n", l.Path) })
		},
	}
}
