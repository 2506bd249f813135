/*
 * The tree of cgroups (v2) that are charged for device memory or have a limit.
 *
 * A cgroup is identified by its path and by its folder's inode: one that was removed and made anew starts
 * without limit and debt. Use is summed upwards at every charge. A limit is checked at its own cgroup and at
 * all above it, as by the kernel's dmem controller.
 */
#define _GNU_SOURCE
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

static int base = -1; /* the root folder of the cgroup v2 tree; -1: there is none */
static struct cgroup *root;

static struct cgroup *new_node(struct cgroup *parent, const char *name, size_t length, uint64_t inode) {
    struct cgroup *node = calloc(1, sizeof *node + length + 1);
    if (!node)
        return NULL;
    memcpy(node->name, name, length);
    node->inode = inode;
    node->parent = parent;
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        node->hard[i] = SIM_LIMIT_MAX;
    if (parent) {
        node->sibling = parent->children;
        parent->children = node;
    }
    return node;
}

/* Reads /proc/self/mountinfo. With `path`, *inside becomes the rest of it below a cgroup v2 mount, as a path
 * in the tree. Without, it opens the folder of the mount that shows the whole tree. */
static bool find_mount(const char *path, char *inside, size_t capacity) {
    FILE *mounts = fopen("/proc/self/mountinfo", "re");
    if (!mounts)
        return false;
    char *line = NULL;
    size_t size = 0, best = 0;
    bool found = false;
    while (getline(&line, &size, mounts) > 0) {
        char top[PATH_MAX], point[PATH_MAX];
        const char *kind = strstr(line, " - ");
        if (!kind || strncmp(kind, " - cgroup2 ", 11) != 0)
            continue;
        if (sscanf(line, "%*d %*d %*s %4095s %4095s", top, point) != 2)
            continue;
        const char *prefix = strcmp(top, "/") == 0 ? "" : top;
        size_t length = strlen(point);
        if (!path) {
            if (*prefix)
                continue;
            base = open(point, O_PATH | O_DIRECTORY | O_CLOEXEC);
            if (base >= 0) {
                found = true;
                break;
            }
        } else if (length > best && strncmp(path, point, length) == 0 &&
                   (path[length] == '/' || path[length] == 0)) {
            best = length;
            found = (size_t)snprintf(inside, capacity, "%s%s", prefix, path + length) < capacity;
        }
    }
    free(line);
    fclose(mounts);
    return found;
}

void cgroup_setup(void) {
    struct stat found = {0};
    if (find_mount(NULL, NULL, 0))
        (void)fstat(base, &found);
    else
        say("no cgroup v2 tree is mounted here: memory limits cannot be set");
    root = new_node(NULL, "", 0, found.st_ino);
    if (!root)
        abort();
    root->references = 1;
}

static void mark_dead(struct cgroup *node) {
    node->dead = true;
    for (struct cgroup *child = node->children; child; child = child->sibling)
        mark_dead(child);
}

static void prune(struct cgroup *node) {
    while (node && node->parent && !node->references && !node->children) {
        struct cgroup *parent = node->parent;
        struct cgroup **link = &parent->children;
        while (*link != node)
            link = &(*link)->sibling;
        *link = node->sibling;
        free(node);
        node = parent;
    }
}

static void hold(struct cgroup *group) { group->references++; }

void cgroup_release(struct cgroup *group) {
    if (!group)
        return;
    group->references--;
    prune(group);
}

static struct cgroup *child_of(struct cgroup *parent, const char *name, size_t length, uint64_t inode,
                               bool create) {
    for (struct cgroup *child = parent->children; child; child = child->sibling) {
        if (child->dead || strlen(child->name) != length || memcmp(child->name, name, length) != 0)
            continue;
        if (child->inode == inode)
            return child;
        mark_dead(child); /* another folder has its name now */
    }
    return create ? new_node(parent, name, length, inode) : NULL;
}

/* The node of a path in the tree ("/a/b"), made if `create`; NULL if the folder does not exist. */
static struct cgroup *node_at(const char *path, bool create) {
    if (base < 0)
        return NULL;
    struct cgroup *node = root;
    const char *start = path;
    while (node) {
        while (*start == '/')
            start++;
        if (!*start)
            return node;
        const char *end = strchrnul(start, '/');
        char sofar[PATH_MAX];
        size_t length = (size_t)(end - path);
        struct stat found;
        if (length >= sizeof sofar || (end - start == 2 && start[0] == '.' && start[1] == '.'))
            break; /* outside this namespace's view */
        memcpy(sofar, path, length);
        sofar[length] = 0;
        struct cgroup *next = NULL;
        if (fstatat(base, sofar + strspn(sofar, "/"), &found, AT_SYMLINK_NOFOLLOW) == 0)
            next = child_of(node, start, (size_t)(end - start), found.st_ino, create);
        if (!next)
            break;
        node = next;
        start = end;
    }
    prune(node); /* nodes made on the way to a missing folder */
    return NULL;
}

/* The "0::" line of /proc/PID/cgroup: the process's path in the v2 tree. */
static bool read_path(pid_t pid, char *path, size_t capacity) {
    char name[64], line[PATH_MAX + 16];
    snprintf(name, sizeof name, "/proc/%d/cgroup", (int)pid);
    FILE *file = fopen(name, "re");
    if (!file)
        return false;
    bool found = false;
    while (!found && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "0::/", 4) == 0)
            found = (size_t)snprintf(path, capacity, "%s", line + 3) < capacity;
    }
    fclose(file);
    return found;
}

/* Whether the path still leads to the same folder. This takes one stat; a walk from the root takes one a
 * component. */
static bool is_current(const struct cgroup *node, const char *path) {
    struct stat found;
    const char *relative = path + strspn(path, "/");
    return !node->dead && fstatat(base, *relative ? relative : ".", &found, AT_SYMLINK_NOFOLLOW) == 0 &&
           found.st_ino == node->inode;
}

struct cgroup *cgroup_of(struct client *client) {
    char path[PATH_MAX];
    if (base < 0 || !read_path(client->pid, path, sizeof path))
        return root;
    if (client->cgroup && strcmp(client->cgroup_path, path) == 0 && is_current(client->cgroup, path))
        return client->cgroup;
    struct cgroup *node = node_at(path, true);
    if (!node)
        return root;
    char *copy = strdup(path);
    if (!copy) {
        prune(node);
        return root;
    }
    hold(node);
    cgroup_release(client->cgroup);
    free(client->cgroup_path);
    client->cgroup = node;
    client->cgroup_path = copy;
    return node;
}

enum sim_status cgroup_named(const char *path, bool create, struct cgroup **found) {
    char link[64], real[PATH_MAX], inside[PATH_MAX];
    struct statfs kind;
    *found = NULL;
    if (base < 0)
        return SIM_NOT_SUPPORTED;
    if (path[0] != '/')
        return SIM_INVALID;
    int folder = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0)
        return errno == ENOTDIR ? SIM_INVALID : SIM_NOT_FOUND;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, real, sizeof real - 1);
    bool v2 = fstatfs(folder, &kind) == 0 && kind.f_type == CGROUP2_SUPER_MAGIC;
    close(folder);
    if (!v2 || length <= 0)
        return SIM_INVALID;
    real[length] = 0;
    if (!find_mount(real, inside, sizeof inside))
        return SIM_NOT_FOUND;
    if (strspn(inside, "/") == strlen(inside))
        return SIM_INVALID; /* the root of the tree has no limits */
    *found = node_at(inside, create);
    return *found || !create ? SIM_OK : SIM_NOT_FOUND;
}

struct cgroup *cgroup_limit(struct cgroup *group, uint32_t device) {
    for (; group; group = group->parent)
        if (group->hard[device] != SIM_LIMIT_MAX)
            return group;
    return NULL;
}

static void drop_limits(struct cgroup *group) {
    if (!group->limited)
        return;
    group->limited = false;
    cgroup_release(group);
}

/* Drops the limits of removed cgroups: a limit holds its node, which would stay for ever. */
static void drop_dead(struct cgroup *group, char *path, size_t length) {
    struct cgroup *next;
    for (struct cgroup *child = group->children; child; child = next) {
        next = child->sibling;
        size_t end = length + (size_t)snprintf(path + length, PATH_MAX - length, "/%s", child->name);
        if (end >= PATH_MAX)
            continue;
        child->references++; /* it must outlive its children and its limit here */
        drop_dead(child, path, end);
        path[end] = 0;
        if (!is_current(child, path)) {
            mark_dead(child);
            drop_limits(child);
        }
        next = child->sibling;
        cgroup_release(child);
    }
}

enum sim_status cgroup_set_limits(struct cgroup *group, uint32_t device, uint64_t soft, uint64_t hard) {
    char path[PATH_MAX] = "";
    hold(group);
    group->soft[device] = soft;
    group->hard[device] = hard;
    bool any = false;
    for (int i = 0; i < SIM_MAX_DEVICES; i++)
        any = any || group->soft[i] != 0 || group->hard[i] != SIM_LIMIT_MAX;
    if (any && !group->limited) {
        group->limited = true;
        hold(group);
    } else if (!any) {
        drop_limits(group);
    }
    drop_dead(root, path, 0);
    cgroup_release(group);
    return SIM_OK;
}

bool cgroup_charge(struct cgroup *group, uint32_t device, uint64_t size) {
    for (struct cgroup *node = group; node; node = node->parent) {
        uint64_t hard = node->hard[device], used = node->used[device];
        if (hard != SIM_LIMIT_MAX && (used > hard || size > hard - used))
            return false;
    }
    for (struct cgroup *node = group; node; node = node->parent)
        node->used[device] += size;
    hold(group);
    return true;
}

void cgroup_uncharge(struct cgroup *group, uint32_t device, uint64_t size) {
    for (struct cgroup *node = group; node; node = node->parent)
        node->used[device] -= size;
    cgroup_release(group);
}
