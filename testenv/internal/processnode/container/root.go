package container

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// oldRoot is where the machine's own root is while mounts are made from it.
const oldRoot = "/.processnode"

// layers are the directories below a container's own.
func layers(dir string) (upper, work, root, tmp string) {
	return filepath.Join(dir, "upper"), filepath.Join(dir, "work"), filepath.Join(dir, "root"), filepath.Join(dir, "tmp")
}

// makeRoot makes the root directory of a container, and enters it.
func makeRoot(spec *Spec) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts to the container: %w", err)
	}
	upper, work, root, tmp := layers(spec.Dir)
	options := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", upper, work)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return fmt.Errorf("lay a writable layer over the machine's files (overlay, %s): %w", options, err)
	}
	if err := os.Mkdir(root+oldRoot, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, root+oldRoot); err != nil {
		return fmt.Errorf("make %s the root: %w", root, err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := mountSystem(spec, tmp); err != nil {
		return err
	}
	if err := mountVolumes(spec.Mounts); err != nil {
		return err
	}
	if err := unix.Unmount(oldRoot, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leave the machine's root: %w", err)
	}
	if err := os.Remove(oldRoot); err != nil {
		return err
	}
	if spec.ReadOnlyRoot {
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make the root read-only: %w", err)
		}
	}
	return nil
}

// mountSystem mounts what every container has.
func mountSystem(spec *Spec, tmp string) error {
	for _, mount := range []struct {
		target, kind string
		flags        uintptr
		options      string
	}{
		{"/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY, ""},
		{"/dev", "tmpfs", unix.MS_NOSUID, "mode=755,size=64k"},
		{"/dev/pts", "devpts", unix.MS_NOSUID | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"},
		{"/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{spec.Hidden, "tmpfs", unix.MS_RDONLY, "mode=000,size=4k"},
	} {
		if err := os.MkdirAll(mount.target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(mount.kind, mount.target, mount.kind, mount.flags, mount.options); err != nil {
			return fmt.Errorf("mount %s at %s: %w", mount.kind, mount.target, err)
		}
	}
	return errors.Join(makeDevices(), mountVolumes([]Mount{{Source: tmp, Target: "/tmp"}}))
}

// makeDevices fills /dev with what programs can count on.
func makeDevices() error {
	var failed error
	for name, number := range map[string][2]uint32{
		"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "tty": {5, 0},
	} {
		path := "/dev/" + name
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(number[0], number[1]))); err != nil {
			failed = errors.Join(failed, fmt.Errorf("make the device %s: %w", path, err))
			continue
		}
		// The umask removes bits from the mode given to mknod.
		failed = errors.Join(failed, os.Chmod(path, 0o666))
	}
	for name, target := range map[string]string{
		"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx",
	} {
		failed = errors.Join(failed, os.Symlink(target, "/dev/"+name))
	}
	return failed
}

// mountVolumes mounts in the order of depth: a volume may be inside another.
func mountVolumes(mounts []Mount) error {
	depth := func(m Mount) int { return strings.Count(filepath.Clean(m.Target), "/") }
	ordered := slices.SortedStableFunc(slices.Values(mounts), func(a, b Mount) int { return depth(a) - depth(b) })
	for _, mount := range ordered {
		if err := mountVolume(mount); err != nil {
			return fmt.Errorf("mount %s: %w", mount.Target, err)
		}
	}
	return nil
}

func mountVolume(mount Mount) error {
	source := oldRoot + mount.Source
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if err := makeMountPoint(mount.Target, info.IsDir()); err != nil {
		return err
	}
	if err := unix.Mount(source, mount.Target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return err
	}
	if !mount.ReadOnly {
		return nil
	}
	return unix.Mount("", mount.Target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
}

func makeMountPoint(path string, isDir bool) error {
	if isDir {
		return os.MkdirAll(path, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return file.Close()
}
