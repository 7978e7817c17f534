/* Makes calls of a process fail, or kills the process there. Preloaded; see shim.py for the rules.
 *
 * The calls are those of both kernels: what Python's os module and Rust's std make of a file. The
 * path of a descriptor is asked from /proc; that of a mapping, for msync and madvise, as well.
 * Nothing is allocated, and no call is made that is intercepted here.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define RULES_MAX 64
#define TEXT_MAX 8192
#define KILL_BEFORE -1
#define KILL_AFTER -2
#define KILL_TORN -3
#define NOTE -4

struct rule {
    const char *call;
    const char *part;
    long nth; /* 0: every one */
    int onwards;
    int action; /* errno, or one of the above */
    long seen;
};

static struct rule rules[RULES_MAX];
static int rule_count;
static char text[TEXT_MAX];
static const char *rules_file, *notes_file;
static struct timespec rules_time;
static ino_t rules_inode;
static atomic_flag locked = ATOMIC_FLAG_INIT;

/* Over the rules. Whoever calls while another thread reads new ones waits for them: a fault that was
 * set before a call must not miss it. */
static void lock(void) {
    while (atomic_flag_test_and_set_explicit(&locked, memory_order_acquire)) sched_yield();
}

static void unlock(void) { atomic_flag_clear_explicit(&locked, memory_order_release); }

static const struct {
    const char *name;
    int number;
} errors[] = {{"EIO", EIO},       {"ENOSPC", ENOSPC}, {"EROFS", EROFS},   {"EACCES", EACCES},
              {"EPERM", EPERM},   {"EBUSY", EBUSY},   {"EMFILE", EMFILE}, {"ENOMEM", ENOMEM},
              {"EDQUOT", EDQUOT}, {"EINTR", EINTR},   {"EAGAIN", EAGAIN}, {"EFAULT", EFAULT},
              {"ENOENT", ENOENT}, {"EINVAL", EINVAL}, {"ENOTSUP", ENOTSUP}};

static void refuse(const char *what) {
    dprintf(2, "KEROLOX_FAULTS: %s\n", what);
    _exit(97);
}

static int action_of(const char *name) {
    if (!strcmp(name, "kill-before")) return KILL_BEFORE;
    if (!strcmp(name, "kill-after")) return KILL_AFTER;
    if (!strcmp(name, "kill-torn")) return KILL_TORN;
    if (!strcmp(name, "note")) return NOTE;
    for (size_t at = 0; at < sizeof errors / sizeof *errors; at++)
        if (!strcmp(name, errors[at].name)) return errors[at].number;
    refuse(name);
    return 0;
}

/* call:path-part:nth:action[,...] in `text`, which is cut up. */
static void parse(void) {
    int count = 0;
    char *outer, *inner;
    for (char *one = strtok_r(text, ",\n", &outer); one; one = strtok_r(NULL, ",\n", &outer)) {
        if (count == RULES_MAX) refuse("too many rules");
        struct rule *rule = &rules[count];
        rule->call = strsep(&one, ":");
        rule->part = one ? strsep(&one, ":") : NULL;
        inner = one ? strsep(&one, ":") : NULL;
        if (!rule->part || !inner || !one) refuse("a rule is call:path-part:nth:action");
        rule->nth = strcmp(inner, "*") ? strtol(inner, NULL, 10) : 0;
        rule->onwards = inner[0] && inner[strlen(inner) - 1] == '+';
        rule->action = action_of(one);
        rule->seen = 0;
        count++;
    }
    rule_count = count;
}

static void read_rules_file(void) {
    struct stat now;
    if (syscall(SYS_newfstatat, AT_FDCWD, rules_file, &now, 0) != 0) return;
    if (now.st_ino == rules_inode && now.st_mtim.tv_sec == rules_time.tv_sec &&
        now.st_mtim.tv_nsec == rules_time.tv_nsec)
        return;
    int descriptor = (int)syscall(SYS_openat, AT_FDCWD, rules_file, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0) return;
    long size = syscall(SYS_read, descriptor, text, TEXT_MAX - 1);
    syscall(SYS_close, descriptor);
    text[size > 0 ? size : 0] = 0;
    rules_inode = now.st_ino;
    rules_time = now.st_mtim;
    parse();
}

/* Also called by a process that was forked, with another environment since. */
__attribute__((constructor)) void kerolox_faults_start(void) {
    const char *given = getenv("KEROLOX_FAULTS");
    notes_file = getenv("KEROLOX_FAULTS_NOTES");
    if (!given) return;
    if (given[0] == '@') {
        rules_file = given + 1;
        return;
    }
    if (strlen(given) >= TEXT_MAX) refuse("too long");
    strcpy(text, given);
    parse();
}

static void note(const char *call, const char *path, const struct rule *rule) {
    char line[PATH_MAX + 128];
    if (!notes_file) return;
    int size = snprintf(line, sizeof line, "%s %s %d\n", call, path, rule->action);
    int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
    int descriptor = (int)syscall(SYS_openat, AT_FDCWD, notes_file, flags, 0644);
    if (descriptor < 0) return;
    syscall(SYS_write, descriptor, line, size);
    syscall(SYS_close, descriptor);
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* What to do at this call: 0 nothing, an errno, KILL_AFTER or KILL_TORN. */
static int judge(const char *call, const char *path) {
    int found = 0;
    lock();
    for (int at = 0; at < rule_count; at++) {
        struct rule *rule = &rules[at];
        if (strcmp(rule->call, call) || !strstr(path, rule->part)) continue;
        long seen = ++rule->seen;
        if (rule->nth && (rule->onwards ? seen < rule->nth : seen != rule->nth)) continue;
        note(call, path, rule);
        if (rule->action == KILL_BEFORE) die();
        if (rule->action != NOTE && !found) found = rule->action;
    }
    unlock();
    return found;
}

static int wanted(const char *call) {
    int found = 0;
    lock();
    if (rules_file) read_rules_file();
    for (int at = 0; at < rule_count && !found; at++) found = !strcmp(rules[at].call, call);
    unlock();
    return found;
}

static int judge_descriptor(const char *call, int descriptor) {
    char link[64], path[PATH_MAX];
    if (!wanted(call)) return 0;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    path[size > 0 ? size : 0] = 0;
    errno = saved;
    return judge(call, path);
}

static int judge_path(const char *call, const char *path) {
    return wanted(call) ? judge(call, path) : 0;
}

static int judge_path_at(const char *call, int folder, const char *path) {
    char link[64], whole[2 * PATH_MAX];
    if (!wanted(call)) return 0;
    if (folder == AT_FDCWD || path[0] == '/') return judge(call, path);
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    long size = syscall(SYS_readlinkat, AT_FDCWD, link, whole, PATH_MAX - 1);
    size = size > 0 ? size : 0;
    snprintf(whole + size, sizeof whole - (size_t)size, "/%s", path);
    return judge(call, whole);
}

static int judge_mapping(const char *call, const void *address) {
    static _Thread_local char block[1 << 16];
    if (!wanted(call)) return 0;
    int saved = errno, found = 0;
    int descriptor = (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t held = 0;
    for (;;) {
        long size = syscall(SYS_read, descriptor, block + held, sizeof block - 1 - held);
        if (size <= 0) break;
        held += (size_t)size;
        block[held] = 0;
        char *line = block, *end;
        for (; (end = strchr(line, '\n')); line = end + 1) {
            unsigned long from, to;
            *end = 0;
            if (sscanf(line, "%lx-%lx", &from, &to) != 2) continue;
            if ((unsigned long)address < from || (unsigned long)address >= to) continue;
            char *path = strchr(line, '/');
            errno = saved;
            found = path ? judge(call, path) : 0;
            goto done;
        }
        held -= (size_t)(line - block);
        memmove(block, line, held);
    }
done:
    syscall(SYS_close, descriptor);
    errno = saved;
    return found;
}

#define REAL(name)                                                                                 \
    static __typeof__(name) *real;                                                                 \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define ACT(judged, call_real)                                                                     \
    int fault = judged;                                                                            \
    if (fault > 0) {                                                                               \
        errno = fault;                                                                             \
        return -1;                                                                                 \
    }                                                                                              \
    __typeof__(call_real) result = call_real;                                                      \
    if (fault) die();                                                                              \
    return result

/* Writes: half of the bytes before a torn kill. */
#define TORN(size) (fault == KILL_TORN ? (size) / 2 : (size))

ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    ACT(judge_descriptor("write", fd), real(fd, data, TORN(size)));
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    ACT(judge_descriptor("pwrite", fd), real(fd, data, TORN(size), at));
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    ACT(judge_descriptor("pwrite", fd), real(fd, data, TORN(size), at));
}

int fsync(int fd) {
    REAL(fsync);
    ACT(judge_descriptor("fsync", fd), real(fd));
}

int fdatasync(int fd) {
    REAL(fdatasync);
    ACT(judge_descriptor("fdatasync", fd), real(fd));
}

int sync_file_range(int fd, off64_t from, off64_t size, unsigned flags) {
    REAL(sync_file_range);
    ACT(judge_descriptor("sync_file_range", fd), real(fd, from, size, flags));
}

int msync(void *address, size_t size, int flags) {
    REAL(msync);
    ACT(judge_mapping("msync", address), real(address, size, flags));
}

int madvise(void *address, size_t size, int advice) {
    REAL(madvise);
    ACT(judge_mapping("madvise", address), real(address, size, advice));
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t at) {
    REAL(mmap);
    int fault = fd >= 0 ? judge_descriptor("mmap", fd) : 0;
    if (fault > 0) {
        errno = fault;
        return MAP_FAILED;
    }
    void *result = real(address, size, protection, flags, fd, at);
    if (fault) die();
    return result;
}

void *mmap64(void *address, size_t size, int protection, int flags, int fd, off64_t at) {
    return mmap(address, size, protection, flags, fd, at);
}

int fallocate(int fd, int mode, off_t from, off_t size) {
    REAL(fallocate);
    ACT(judge_descriptor("fallocate", fd), real(fd, mode, from, size));
}

int fallocate64(int fd, int mode, off64_t from, off64_t size) {
    REAL(fallocate64);
    ACT(judge_descriptor("fallocate", fd), real(fd, mode, from, size));
}

/* These give the error instead of setting errno. */
int posix_fallocate(int fd, off_t from, off_t size) {
    REAL(posix_fallocate);
    int fault = judge_descriptor("fallocate", fd);
    return fault > 0 ? fault : real(fd, from, size);
}

int posix_fallocate64(int fd, off64_t from, off64_t size) {
    return posix_fallocate(fd, from, size);
}

int ftruncate(int fd, off_t size) {
    REAL(ftruncate);
    ACT(judge_descriptor("ftruncate", fd), real(fd, size));
}

int ftruncate64(int fd, off64_t size) {
    REAL(ftruncate64);
    ACT(judge_descriptor("ftruncate", fd), real(fd, size));
}

static int judge_open(int folder, const char *path, int flags) {
    int fault = flags & O_CREAT ? judge_path_at("create", folder, path) : 0;
    return fault ? fault : judge_path_at("open", folder, path);
}

#define MODE_OF(flags)                                                                             \
    mode_t mode = 0;                                                                               \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {                                                       \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode = va_arg(more, mode_t);                                                               \
        va_end(more);                                                                              \
    }

int open(const char *path, int flags, ...) {
    MODE_OF(flags)
    REAL(open);
    ACT(judge_open(AT_FDCWD, path, flags), real(path, flags, mode));
}

int open64(const char *path, int flags, ...) {
    MODE_OF(flags)
    REAL(open64);
    ACT(judge_open(AT_FDCWD, path, flags), real(path, flags, mode));
}

int openat(int folder, const char *path, int flags, ...) {
    MODE_OF(flags)
    REAL(openat);
    ACT(judge_open(folder, path, flags), real(folder, path, flags, mode));
}

int openat64(int folder, const char *path, int flags, ...) {
    MODE_OF(flags)
    REAL(openat64);
    ACT(judge_open(folder, path, flags), real(folder, path, flags, mode));
}

/* A rename is known by its new name. */
int rename(const char *from, const char *to) {
    REAL(rename);
    ACT(judge_path("rename", to), real(from, to));
}

int renameat(int from_folder, const char *from, int to_folder, const char *to) {
    REAL(renameat);
    ACT(judge_path_at("rename", to_folder, to), real(from_folder, from, to_folder, to));
}

int unlink(const char *path) {
    REAL(unlink);
    ACT(judge_path("unlink", path), real(path));
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    const char *call = flags & AT_REMOVEDIR ? "rmdir" : "unlink";
    ACT(judge_path_at(call, folder, path), real(folder, path, flags));
}

int rmdir(const char *path) {
    REAL(rmdir);
    ACT(judge_path("rmdir", path), real(path));
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    ACT(judge_path("mkdir", path), real(path, mode));
}
