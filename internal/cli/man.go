package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// man is for those who package ration.
func (a *app) man() *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write the man pages",
		Hidden: true,
		Long: `Write a man page for each command into a folder, which is made if it is
missing. SOURCE_DATE_EPOCH sets their date, for builds that can be repeated.`,
		Example: "  ration man build/man1",
		Args:    takes(1, 1, "a folder"),
		RunE: does(func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return fmt.Errorf("making %s: %w", args[0], err)
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			err := doc.GenManTree(root, &doc.GenManHeader{Section: "1", Source: "ration " + version, Manual: "ration"}, args[0])
			if err != nil {
				return fmt.Errorf("writing man pages into %s: %w", args[0], err)
			}
			return nil
		}),
	}
}
