package tui

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"ration/internal/safepath"

	"golang.org/x/sys/unix"
)

// Settings are the user's choices of how to display things. They are kept for the next run.
// Filters, and whether ended jobs are shown, are not kept: the next run starts with everything that
// runs.
type Settings struct {
	Jobs      TableSettings `json:"jobs"`
	Processes TableSettings `json:"processes"`
	Tree      bool          `json:"tree"`     // show processes as a tree
	NoMouse   bool          `json:"no_mouse"` // leave the mouse to the terminal
}

// TableSettings are the settings of a table.
type TableSettings struct {
	Sort    string   `json:"sort"` // one of the table's sort keys
	Reverse bool     `json:"reverse"`
	Hidden  []string `json:"hidden_columns"` // titles of hidden columns
}

func (t *TableSettings) hides(title string) bool { return slices.Contains(t.Hidden, title) }

// toggle hides a column, or shows it again.
func (t *TableSettings) toggle(title string) {
	if i := slices.Index(t.Hidden, title); i >= 0 {
		t.Hidden = slices.Delete(t.Hidden, i, i+1)
		return
	}
	t.Hidden = append(t.Hidden, title)
	slices.Sort(t.Hidden)
}

// nextSort selects the next key.
func (t *TableSettings) nextSort(keys []string) {
	t.Sort, t.Reverse = keys[(slices.Index(keys, t.Sort)+1)%len(keys)], false
}

// valid returns the settings without values that this version does not know.
func (s Settings) valid() Settings {
	if !slices.Contains(jobSorts, s.Jobs.Sort) {
		s.Jobs.Sort = jobSorts[0]
	}
	if !slices.Contains(processSorts, s.Processes.Sort) {
		s.Processes.Sort = processSorts[0]
	}
	return s
}

// SettingsPath returns the path of the user's settings file, or "" if there must be none. There is
// none if another user owns the folder, as may happen under sudo: that user could then make root
// write to any file.
func SettingsPath() string {
	folder, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	for dir := folder; ; dir = filepath.Dir(dir) { // find the first folder that exists
		var st unix.Stat_t
		err := unix.Stat(dir, &st)
		switch {
		case err == nil && int(st.Uid) == os.Geteuid() && st.Mode&0o022 == 0:
			return filepath.Join(folder, "ration", "top.json")
		case err == nil || !errors.Is(err, unix.ENOENT):
			return ""
		}
	}
}

// LoadSettings reads settings from a file. Missing settings have their default values, and so have
// all if the file cannot be read.
func LoadSettings(path string) (s Settings) {
	if text, err := os.ReadFile(path); err == nil && json.Unmarshal(text, &s) != nil {
		s = Settings{}
	}
	return s.valid()
}

// Save writes the settings in one step, because another ration top may read them.
func (s Settings) Save(path string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("saving the settings of ration top: %w", err)
	}
	if err := safepath.Replace(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("saving the settings of ration top: %w", err)
	}
	return nil
}
