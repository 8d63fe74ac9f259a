/* SPDX-License-Identifier: MIT */
/* store_doctor: the directory, seen from outside: whose it is, what its file system can do, what is in it. */
#define _GNU_SOURCE
#include "store/doctor.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

/* ------------------------------------------------------------- the directory */

/* false: there is nothing more to look at. */
static bool look_at_directory(doctor *d, const char *dir, struct stat *st)
{
    if (stat(dir, st)) {
        doctor_say(d, "disk.directory", SEVERITY_FAULT,
                   errno == ENOENT
                       ? "Check the name. An engine that opens it with a size limit makes it."
                       : "Give the user of the engine access to it and to the directories above it.",
                   "%s: %s.", dir, strerror(errno));
        return false;
    }
    if (!S_ISDIR(st->st_mode)) {
        doctor_say(d, "disk.directory", SEVERITY_FAULT, "Use another name.", "%s is not a directory.", dir);
        return false;
    }
    doctor_say(d, "disk.directory", SEVERITY_OK, NULL, "%s is there.", dir);
    if (st->st_uid != geteuid())
        doctor_say(d, "disk.owner", geteuid() == 0 ? SEVERITY_WARNING : SEVERITY_FAULT,
                   "Run this command and the engine as the owner of the directory.",
                   "%s belongs to user %u, and this is user %u.", dir, (unsigned)st->st_uid,
                   (unsigned)geteuid());
    else
        doctor_say(d, "disk.owner", SEVERITY_OK, NULL, "It belongs to this user (%u).", (unsigned)st->st_uid);
    if (st->st_mode & 077)
        doctor_say(d, "disk.mode", SEVERITY_WARNING, "chmod 700 the directory, and 600 the files in it.",
                   "Other users can enter %s (mode %03o): the pages are not encrypted.", dir,
                   (unsigned)st->st_mode & 0777);
    else
        doctor_say(d, "disk.mode", SEVERITY_OK, NULL, "Only its owner can enter it.");
    return true;
}

/* --------------------------------------------------------------------- files */

typedef struct files {
    uint32_t n_slabs, n_foreign, n_open, n_others;
    bool has_head, has_index, has_segments, is_unreadable;
    char foreign[64], open[64];
} files;

static void look_at_name(files *f, const char *name, const struct stat *st, uid_t owner)
{
    bool known = true;
    unsigned id;
    char end;
    if (strcmp(name, "quire-store") == 0)
        f->has_head = true;
    else if (strcmp(name, "index") == 0)
        f->has_index = true;
    else if (strncmp(name, "segment-", 8) == 0)
        f->has_segments = true;
    else if (strlen(name) == 13 && sscanf(name, "slab-%8x%c", &id, &end) == 1)
        f->n_slabs++;
    else
        known = strncmp(name, "index", 5) == 0 || strncmp(name, "quire-", 6) == 0 ||
                strncmp(name, "quotas", 6) == 0 || /* with journals, and new ones under way */
                strcmp(name, "serve.key") == 0;    /* made by quire serve */
    if (!known && !f->n_foreign++) (void)snprintf(f->foreign, sizeof f->foreign, "%.60s", name);
    if (!known) return;
    if (st->st_mode & 077 && !f->n_open++) (void)snprintf(f->open, sizeof f->open, "%.60s", name);
    f->n_others += st->st_uid != owner;
}

static void list_files(files *f, const char *dir, uid_t owner)
{
    DIR *list = opendir(dir);
    f->is_unreadable = !list;
    for (struct dirent *e; list && (e = readdir(list));) {
        struct stat st;
        if (e->d_name[0] != '.' && fstatat(dirfd(list), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            look_at_name(f, e->d_name, &st, owner);
    }
    if (list) closedir(list);
}

static void look_at_files(doctor *d, const char *dir, const struct stat *st, files *f)
{
    list_files(f, dir, st->st_uid);
    if (f->has_segments)
        doctor_say(d, "disk.form", SEVERITY_FAULT, "Remove the directory, or use another one: it is a cache.",
                   "%s holds a store of an earlier form (LMDB segments).", dir);
    if (f->n_open)
        doctor_say(d, "disk.file_mode", SEVERITY_WARNING, "chmod 600 them.",
                   "%u files can be read by other users, for example %s.", f->n_open, f->open);
    if (f->n_others)
        doctor_say(d, "disk.file_owner", SEVERITY_FAULT, "chown them to the owner of the directory.",
                   "%u files belong to another user than the directory.", f->n_others);
    if (f->n_foreign)
        doctor_say(d, "disk.files", SEVERITY_NOTE,
                   "Keep other files elsewhere: they count towards the size limit.",
                   "%u files are not the store's, for example %s.", f->n_foreign, f->foreign);
    if (f->n_slabs && !f->has_index)
        doctor_say(d, "disk.index", SEVERITY_WARNING,
                   "Nothing: it is made anew when the directory is opened.", "The index is missing.");
    if (f->n_slabs && !f->has_head)
        doctor_say(d, "disk.head", SEVERITY_WARNING, "Nothing: it is made anew when the directory is opened.",
                   "The file quire-store is missing.");
}

/* --------------------------------------------------------------- file system */

static void look_at_file_system(doctor *d, const char *dir)
{
    static const struct {
        unsigned long magic;
        const char *name;
        severity how;
    } kinds[] = {{0x6969, "NFS", SEVERITY_FAULT},        {0x517b, "SMB", SEVERITY_FAULT},
                 {0xff534d42, "CIFS", SEVERITY_FAULT},   {0xfe534d42, "SMB", SEVERITY_FAULT},
                 {0x00c36400, "Ceph", SEVERITY_WARNING}, {0x65735546, "FUSE", SEVERITY_WARNING},
                 {0x01021997, "9p", SEVERITY_WARNING},   {0x794c7630, "overlay", SEVERITY_NOTE},
                 {0x01021994, "tmpfs", SEVERITY_NOTE}};
    struct statfs fs;
    if (statfs(dir, &fs)) return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if ((unsigned long)fs.f_type != kinds[i].magic) continue;
        bool in_memory = kinds[i].magic == 0x01021994;
        doctor_say(d, "disk.file_system", kinds[i].how,
                   kinds[i].how == SEVERITY_NOTE ? NULL : "Use a local disk with ext4, XFS or Btrfs.",
                   in_memory ? "The directory is on %s: its pages take memory and are lost at a restart."
                             : "The directory is on %s.",
                   kinds[i].name);
        return;
    }
    doctor_say(d, "disk.file_system", SEVERITY_OK, NULL, "It is on a local file system.");
}

/* What the store needs of files, tried with one. */
static void try_file(doctor *d, const char *dir)
{
    char path[4200];
    (void)snprintf(path, sizeof path, "%s/.quire-doctor-%d", dir, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) {
        doctor_say(d, "disk.write", SEVERITY_FAULT,
                   errno == ENOSPC || errno == EDQUOT ? "Make room on the file system."
                                                      : "Give the user of the engine the right to write.",
                   "No file can be made in %s: %s.", dir, strerror(errno));
        return;
    }
    char block[4096] = {0};
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    if (write(fd, block, sizeof block) != (ssize_t)sizeof block)
        doctor_say(d, "disk.write", SEVERITY_FAULT, "Make room on the file system.", "Writing failed: %s.",
                   strerror(errno));
    else
        doctor_say(d, "disk.write", SEVERITY_OK, NULL, "Files can be made and written.");
    if (fcntl(fd, F_OFD_SETLK, &lock))
        doctor_say(d, "disk.locks", SEVERITY_FAULT, "Use a local disk with ext4, XFS or Btrfs.",
                   "Files cannot be locked: %s.", strerror(errno));
    else
        doctor_say(d, "disk.locks", SEVERITY_OK, NULL, "Files can be locked.");
    if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096))
        doctor_say(d, "disk.holes", SEVERITY_FAULT, "Use ext4, XFS, Btrfs or tmpfs.",
                   "Parts of files cannot be given back (fallocate PUNCH_HOLE): %s.", strerror(errno));
    else
        doctor_say(d, "disk.holes", SEVERITY_OK, NULL, "Parts of files can be given back.");
    int direct = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    if (direct < 0)
        doctor_say(
            d, "disk.direct", SEVERITY_NOTE, NULL,
            "Files cannot be read past the page cache (O_DIRECT): the kernel is told to forget what was read.");
    else
        doctor_say(d, "disk.direct", SEVERITY_OK, NULL, "Files can be read past the page cache.");
    if (direct >= 0) close(direct);
    close(fd);
    (void)unlink(path);
}

void doctor_look_at_disk(doctor *d)
{
    const char *dir = d->options->directory;
    struct stat st;
    files f = {0};
    if (!look_at_directory(d, dir, &st)) return;
    look_at_files(d, dir, &st, &f);
    look_at_file_system(d, dir);
    try_file(d, dir);
    if (f.is_unreadable)
        doctor_say(d, "disk.open", SEVERITY_NOTE, "Run this command as the owner of the directory.",
                   "Whether %s holds a store cannot be seen by this user.", dir);
    else if (!f.n_slabs && !f.has_head && !f.has_segments)
        doctor_say(d, "disk.open", SEVERITY_NOTE, NULL, "%s holds no store yet.", dir);
    else if (st.st_uid != geteuid())
        doctor_say(d, "disk.open", SEVERITY_NOTE, "Run this command as the owner of the directory.",
                   "The directory was not opened: files that this might make would belong to another user.");
    else if (!f.has_segments)
        doctor_look_at_pages(d);
}
