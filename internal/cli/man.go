package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCommand returns a command for packagers.
func newManCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write the man pages",
		Hidden: true,
		Long: `Write a man page for each command into a folder, which is made if it is
missing. SOURCE_DATE_EPOCH sets their date, for reproducible builds.`,
		Example: "  ration man build/man1",
		Args:    argCount(1, 1, "a folder"),
		RunE:    withStatus(func(cmd *cobra.Command, args []string) error { return runMan(cmd.Root(), args[0]) }),
	}
}

func runMan(root *cobra.Command, folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("making %s: %w", folder, err)
	}
	root.DisableAutoGenTag = true
	err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "ration " + version, Manual: "ration"}, folder)
	if err != nil {
		return fmt.Errorf("writing man pages into %s: %w", folder, err)
	}
	return nil
}
