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

// Settings are what the user has chosen for this run and the next: how things are shown. Which
// of them (filters, ended jobs) is not among them: the next run begins with everything that runs.
type Settings struct {
	Jobs      TableSettings `json:"jobs"`
	Processes TableSettings `json:"processes"`
	Tree      bool          `json:"tree"`     // of processes
	NoMouse   bool          `json:"no_mouse"` // leave the mouse to the terminal
}

// TableSettings are the settings of a table.
type TableSettings struct {
	Sort    string   `json:"sort"` // one of the table's sort keys
	Reverse bool     `json:"reverse"`
	Hidden  []string `json:"hidden_columns"` // by their titles
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

// nextSort goes to the next key.
func (t *TableSettings) nextSort(keys []string) {
	t.Sort, t.Reverse = keys[(slices.Index(keys, t.Sort)+1)%len(keys)], false
}

// valid returns the settings without what this version does not know.
func (s Settings) valid() Settings {
	if !slices.Contains(jobSorts, s.Jobs.Sort) {
		s.Jobs.Sort = jobSorts[0]
	}
	if !slices.Contains(processSorts, s.Processes.Sort) {
		s.Processes.Sort = processSorts[0]
	}
	return s
}

// SettingsPath returns where a user's settings are, or "" for nowhere: under sudo the home may be
// another user's, and that user could make root write any file.
func SettingsPath() string {
	folder, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	for dir := folder; ; dir = filepath.Dir(dir) { // the first that exists
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

// LoadSettings returns the settings of a file; those that it lacks, and all of a file that
// cannot be read, are as at first.
func LoadSettings(path string) (s Settings) {
	if text, err := os.ReadFile(path); err == nil && json.Unmarshal(text, &s) != nil {
		s = Settings{}
	}
	return s.valid()
}

// Save writes the settings, in one step: another ration top may read them.
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
