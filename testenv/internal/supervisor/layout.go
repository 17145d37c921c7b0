package supervisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// layout names the files of one environment below its directory.
type layout struct{ root string }

func (l layout) logs() string            { return filepath.Join(l.root, "logs") }
func (l layout) certs() string           { return filepath.Join(l.root, "certs") }
func (l layout) etcd() string            { return filepath.Join(l.root, "etcd") }
func (l layout) etcdBackup() string      { return filepath.Join(l.root, "etcd-backup") }
func (l layout) tokens() string          { return filepath.Join(l.root, "tokens.csv") }
func (l layout) adminKubeconfig() string { return filepath.Join(l.root, "admin.kubeconfig") }
func (l layout) kubeconfig() string      { return filepath.Join(l.root, "kubeconfig") }
func (l layout) stages() string          { return filepath.Join(l.root, "stages.yaml") }
func (l layout) complaints() string      { return filepath.Join(l.root, "testenv.log") }
func (l layout) lock() string            { return filepath.Join(l.root, "lock") }

// prepare recreates the directories, and removes what a killed environment left there.
func (l layout) prepare() error {
	if err := errors.Join(l.removeData(), os.RemoveAll(l.logs())); err != nil {
		return err
	}
	for _, dir := range []string{l.logs(), l.certs(), l.etcd()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	return nil
}

// removeData removes everything but the logs and the lock.
func (l layout) removeData() error {
	var failed error
	for _, path := range []string{l.certs(), l.etcd(), l.etcdBackup(), l.tokens(), l.adminKubeconfig(), l.kubeconfig(), l.stages()} {
		failed = errors.Join(failed, os.RemoveAll(path))
	}
	return failed
}

// removeAll removes everything that an environment writes, and the directory too unless it holds something else. It takes
// the lock, so as not to remove the files of an environment that starts meanwhile.
func (l layout) removeAll() error {
	lock, err := l.takeLock()
	if err != nil {
		return err
	}
	defer lock.Close()
	failed := l.removeData()
	for _, path := range []string{l.logs(), l.complaints(), l.lock()} {
		failed = errors.Join(failed, os.RemoveAll(path))
	}
	if err := os.Remove(l.root); err != nil && !errors.Is(err, syscall.ENOTEMPTY) {
		failed = errors.Join(failed, err)
	}
	return failed
}

// takeLock makes this process the directory's only supervisor. The kernel gives the lock back when the process ends,
// and tells others the holder's process id: a file with the id in it would outlive a killed supervisor.
func (l layout) takeLock() (*os.File, error) {
	file, err := os.OpenFile(l.lock(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	wanted := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err := syscall.FcntlFlock(file.Fd(), syscall.F_SETLK, &wanted); err != nil {
		file.Close()
		return nil, fmt.Errorf("%s is in use by another environment: %w", l.root, err)
	}
	return file, nil
}

// lockHolder is the process id of the directory's supervisor, 0 if none runs. The error is os.ErrNotExist if none ever did.
func (l layout) lockHolder() (int, error) {
	file, err := os.OpenFile(l.lock(), os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	held := syscall.Flock_t{Type: syscall.F_WRLCK}
	if err := syscall.FcntlFlock(file.Fd(), syscall.F_GETLK, &held); err != nil {
		return 0, fmt.Errorf("ask who holds %s: %w", l.lock(), err)
	}
	if held.Type == syscall.F_UNLCK {
		return 0, nil
	}
	return int(held.Pid), nil
}
