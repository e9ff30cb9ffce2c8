package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"ration/internal/hami"
	"ration/internal/limit"
)

func newKubeCommand(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "kube",
		Short: "Convert manifests of Kubernetes",
		Long: `Convert manifests for HAMi into claims of rations. On each node,
ration-kubelet-plugin gives pods their rations.`,
		Example: `  ration kube convert deployment.yaml | kubectl apply -f -`,
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKubeConvertCommand(a))
	return cmd
}

func newKubeConvertCommand(a *app) *cobra.Command {
	var options hami.Options
	var memory string
	var partial bool
	cmd := &cobra.Command{
		Use:   "convert [FILE...]",
		Short: "Convert manifests for HAMi into claims of rations",
		Long: `Convert manifests that request GPUs with HAMi's resources (nvidia.com/gpu,
gpumem, gpumem-percentage, gpucores) into manifests that claim a ration of a
GPU with Dynamic Resource Allocation. It adds a ResourceClaimTemplate before
each object, and a claim in its pods. It reads YAML files, or standard input,
and prints the result; everything that does not concern HAMi is unchanged.
Notes on standard error, with file and line, describe other changes, and
settings that have no effect any more.

If an object cannot be converted, the notes say which and why, and nothing is
printed, so that no part of the files is applied. With --partial all other
objects are converted, and this one is printed unchanged.

Exit status: 0 if everything is converted; 1 if an object is not, or a file
cannot be read.`,
		Example: `  ration kube convert deployment.yaml | kubectl apply -f -
  helm template train ./chart | ration kube convert --device-memory 80Gi`,
		RunE: func(_ *cobra.Command, files []string) error {
			if a.json {
				return usageError("ration kube convert prints YAML, as it reads it (leave out --json)")
			}
			if memory != "" {
				size, err := limit.ParseSize(memory)
				if err != nil {
					return usageError("--device-memory %q: %w (use 80Gi, or 80g)", memory, err)
				}
				options.DeviceMemory = size
			}
			return a.runKubeConvert(files, options, partial)
		},
	}
	cmd.Flags().StringVar(&memory, "device-memory", "", "`size` of each GPU, like 80Gi, which percentages are of")
	cmd.Flags().BoolVar(&partial, "partial", false, "print also if an object cannot be converted, with that object as it was")
	cmd.Flags().StringVar(&options.Class, "device-class", "gpu.ration", "the device class that claims name")
	return cmd
}

// Errors for objects that were not converted.
var (
	errNothing = errors.New("nothing is printed, because not everything can be converted (see the notes; --partial prints the rest)")
	errPart    = errors.New("not everything was converted (see the notes)")
)

func (a *app) runKubeConvert(files []string, o hami.Options, partial bool) error {
	if len(files) == 0 {
		files = []string{"-"}
	}
	converter := hami.Converter{Options: o}
	var all [][]byte
	failed := false
	for _, file := range files {
		name := file
		if file == "-" {
			name = "standard input"
		}
		text, err := readFileOrInput(file)
		if err != nil {
			return err
		}
		out, notes, err := converter.Convert(text)
		if err != nil {
			return fmt.Errorf("converting %s: %w", name, err)
		}
		if len(out) > 0 {
			all = append(all, out)
		}
		for _, n := range notes {
			what := ""
			if n.Failed {
				what, failed = "not converted: ", true
			}
			printError(a.err, fmt.Errorf("%s:%d: %s%s", name, n.Line, what, n))
		}
	}
	if failed && !partial {
		return errNothing
	}
	a.out.printf("%s", bytes.Join(all, []byte("---\n")))
	if failed {
		return errPart
	}
	return nil
}

// readFileOrInput reads a file, or standard input for "-".
func readFileOrInput(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(file)
}
