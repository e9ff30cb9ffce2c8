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
	Region  int    `json:"region_version"` // of the layout; all processes of a job must have the same
	Go      string `json:"go"`
	Arch    string `json:"arch"`
}

func newVersionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version of ration, and the version of the regions that it makes. All
processes of a job must use the same one.`,
		Example: "  ration version --json",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			v := Version{version, abi.Version, runtime.Version(), runtime.GOARCH}
			return a.print(v, func() { a.out.printf("ration %s (region version %d, %s, %s)\n", v.Version, v.Region, v.Go, v.Arch) })
		},
	}
}
