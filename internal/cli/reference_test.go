package cli

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ration/check/expect"
	"ration/internal/limit"
)

// Every flag that takes a value says which.
func TestFlagsComplete(t *testing.T) {
	for _, c := range visibleCommands() {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "bool" {
				return
			}
			_, there := c.GetFlagCompletionFunc(f.Name)
			expect.True(t, there, c.CommandPath(), "--", f.Name, "completes to files, whatever it takes")
		})
		expect.True(t, !strings.Contains(c.Use, "JOB") || c.ValidArgsFunction != nil, c.CommandPath(), "does not complete jobs")
	}
	_, directive := completeCommand(nil, []string{"python"}, "tr")
	expect.Equal(t, directive, cobra.ShellCompDirectiveDefault, "arguments of the command are not completed as files")
}

// The manual says of 0 what the flags do.
func TestNoLimitIsNone(t *testing.T) {
	_, err := limit.ParseMemorySet("--mem", "0")
	expect.True(t, err != nil, "--mem 0 is taken")
	i := slices.IndexFunc(words, func(e Entry) bool { return e.Name == "size" })
	expect.True(t, strings.Contains(words[i].Text, "none is no limit; 0 is refused."), words[i].Text)
}

// variableName matches a variable of ours or of HAMi-core's in the sources, as a string.
var variableName = regexp.MustCompile(`"(RATION_[A-Z_]+|CUDA_(?:DEVICE|DISABLE|OVER|TASK)[A-Z_]*|ACTIVE_OOM_KILLER|GPU_CORE_[A-Z_]+|LIBCUDA_LOG_LEVEL|LOG_LEVEL|NO_COLOR)"`)

// Every variable that the sources name is in the manual, and none that they do not.
func TestVariablesAreDocumented(t *testing.T) {
	documented := map[string]bool{}
	for _, e := range variablesOf("ration") {
		for name := range strings.SplitSeq(e.Name, ", ") {
			documented[strings.TrimSuffix(name, "_<i>")] = true
		}
	}
	named := map[string]bool{}
	for _, root := range []string{"../../shim", "../../internal", "../../cmd"} {
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			if d.IsDir() && (d.Name() == "test" || d.Name() == "testdata") {
				return fs.SkipDir
			}
			ext := filepath.Ext(path)
			if d.IsDir() || strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "reference.go") || ext != ".go" && ext != ".c" && ext != ".h" {
				return nil
			}
			text, err := os.ReadFile(path)
			for _, m := range variableName.FindAllStringSubmatch(string(text), -1) {
				named[m[1]] = true
			}
			return err
		})
		expect.OK(t, err)
	}
	// Of the tests alone, or the beginning of several names.
	internal := regexp.MustCompile(`^RATION_(TEST_.*|FAULT|)$|^CUDA_DEVICE_MEMORY$|_$`)
	for name := range named {
		expect.True(t, documented[name] || internal.MatchString(name), name, "is in the sources, and not in ration(7)")
	}
	for name := range documented {
		expect.True(t, named[name] || !variableName.MatchString(`"`+name+`"`), name, "is in ration(7), and not in the sources")
	}
}
