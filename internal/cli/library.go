package cli

import (
	"path/filepath"

	"github.com/spf13/cobra"

	"ration/internal/embedded"
)

// Library is what `ration library --json` prints.
type Library struct {
	Path string `json:"path"`
}

func (a *app) library() *cobra.Command {
	return &cobra.Command{
		Use:   "library",
		Short: "Print where the library is, for LD_PRELOAD",
		Long: `Unpack the library, unless that was done before, and print its path. It is for
those who set up the environment of their programs themselves, as HAMi-core's
users do; ration run does it for everybody else.`,
		Example: "  LD_PRELOAD=$(ration library) CUDA_DEVICE_MEMORY_LIMIT=10g python train.py",
		Args:    noArgs,
		RunE: does(func(*cobra.Command, []string) error {
			dir, err := embedded.Ration.Unpack()
			if err != nil {
				return launchError(err)
			}
			l := Library{filepath.Join(dir, "libration.so")}
			if a.json {
				return a.out.print(l)
			}
			a.out.printf("%s\n", l.Path)
			return nil
		}),
	}
}
