package cli

import (
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
		Long: `Turn manifests for HAMi into ones that claim a ration of a GPU. What gives pods
their rations is ration-kubelet-plugin, on each node.`,
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
	cmd := &cobra.Command{
		Use:   "convert [FILE...]",
		Short: "Turn manifests for HAMi into ones that claim a ration",
		Long: `Turn manifests that ask for GPUs as HAMi has it (nvidia.com/gpu, gpumem,
gpumem-percentage, gpucores) into ones that claim a ration of a GPU by Dynamic
Resource Allocation: a ResourceClaimTemplate before each object, and a claim in
its pods. It reads files of YAML, or standard input, and prints what they become,
with all that is not of HAMi as it was. Notes on standard error say what else
changes, and what could not be converted and was left.

Exit status: 0 if all of it is converted; 1 if something was left, or cannot be
read.`,
		Example: `  ration kube convert deployment.yaml | kubectl apply -f -
  helm template train ./chart | ration kube convert --device-memory 80Gi`,
		RunE: withStatus(func(_ *cobra.Command, files []string) error {
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
			return a.runKubeConvert(files, options)
		}),
	}
	cmd.Flags().StringVar(&memory, "device-memory", "", "`size` of each GPU, like 80Gi, which percentages are of")
	cmd.Flags().StringVar(&options.Class, "device-class", "gpu.ration", "the device class that claims name")
	return cmd
}

// errLeft is returned where a manifest was not converted as a whole.
var errLeft = errors.New("not all of it was converted (see the notes)")

func (a *app) runKubeConvert(files []string, o hami.Options) error {
	if len(files) == 0 {
		files = []string{"-"}
	}
	left := false
	for i, file := range files {
		text, err := readFileOrInput(file)
		if err != nil {
			return err
		}
		out, notes, err := hami.Convert(text, o)
		if err != nil {
			return fmt.Errorf("converting %s: %w", file, err)
		}
		if i > 0 {
			a.out.printf("---\n")
		}
		a.out.printf("%s", out)
		for _, n := range notes {
			printError(a.err, errors.New(n.String()))
			left = left || n.Left
		}
	}
	if left {
		return errLeft
	}
	return nil
}

// readFileOrInput reads a file; - is standard input.
func readFileOrInput(file string) ([]byte, error) {
	if file == "-" {
		return io.ReadAll(os.Stdin)
	}
	return os.ReadFile(file)
}
