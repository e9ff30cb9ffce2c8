package cli

import (
	"runtime"

	"github.com/spf13/cobra"

	"ration/internal/abi"
)

// version is set by the linker.
var version = "dev"

// Version is what `ration version --json` prints.
type Version struct {
	Version string `json:"version"`
	Region  int    `json:"region_version"` // of the layout; processes of a job must agree on it
	Go      string `json:"go"`
	Arch    string `json:"arch"`
}

func (a *app) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version of ration, and of the regions it makes and reads: processes of
one job must agree on that.`,
		Example: "  ration version --json",
		Args:    noArgs,
		RunE: does(func(*cobra.Command, []string) error {
			v := Version{version, abi.Version, runtime.Version(), runtime.GOARCH}
			if a.json {
				return a.out.print(v)
			}
			a.out.printf("ration %s (region version %d, %s, %s)\n", v.Version, v.Region, v.Go, v.Arch)
			return nil
		}),
	}
}
