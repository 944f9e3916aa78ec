//! Circles in a graph of dependencies.

/// How one transaction depends on another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Edge {
    /// The second appended right after the first.
    Append,
    /// The second read what the first appended.
    Read,
    /// The second appended what the first did not see.
    Unseen,
    /// The first had ended when the second began.
    Time,
}

/// A graph of numbered nodes.
#[derive(Debug, Default)]
pub(super) struct Graph {
    edges: Vec<Vec<(usize, Edge)>>,
}

impl Graph {
    pub(super) fn new(nodes: usize) -> Graph {
        Graph { edges: vec![Vec::new(); nodes] }
    }

    pub(super) fn add(&mut self, from: usize, edge: Edge, to: usize) {
        if from != to {
            self.edges[from].push((to, edge));
        }
    }

    /// The same graph in which no way has one [`Edge::Unseen`] right after another: what snapshot isolation allows is
    /// cut. Node `n` is `2 * n` after another edge, and `2 * n + 1` after such a one.
    pub(super) fn without_skew(&self) -> Graph {
        let mut cut = Graph::new(2 * self.edges.len());
        for (from, edges) in self.edges.iter().enumerate() {
            for &(to, edge) in edges {
                match edge {
                    Edge::Unseen => cut.add(2 * from, edge, 2 * to + 1),
                    _ => {
                        cut.add(2 * from, edge, 2 * to);
                        cut.add(2 * from + 1, edge, 2 * to);
                    }
                }
            }
        }
        cut
    }

    /// A shortest circle through some node that is on one: its nodes, each with the edge that leads on.
    pub(super) fn circle(&self) -> Option<Vec<(usize, Edge)>> {
        let node = self.node_on_a_circle()?;
        let mut came: Vec<Option<(usize, Edge)>> = vec![None; self.edges.len()];
        let mut queue = std::collections::VecDeque::from([node]);
        while let Some(from) = queue.pop_front() {
            for &(to, edge) in &self.edges[from] {
                if came[to].is_none() {
                    came[to] = Some((from, edge));
                    queue.push_back(to);
                }
            }
            if came[node].is_some() {
                break;
            }
        }
        let mut circle = Vec::new();
        let mut at = node;
        while let Some((from, edge)) = came[at] {
            circle.push((from, edge));
            at = from;
            if at == node {
                break;
            }
        }
        circle.reverse();
        Some(circle)
    }

    /// Takes away nodes without an edge to them until none is left, or only such on or behind circles: one on a circle is
    /// found by going back from there.
    fn node_on_a_circle(&self) -> Option<usize> {
        let mut into = vec![0u32; self.edges.len()];
        for (to, _) in self.edges.iter().flatten() {
            into[*to] += 1;
        }
        let mut free: Vec<usize> = (0..into.len()).filter(|node| into[*node] == 0).collect();
        while let Some(node) = free.pop() {
            for (to, _) in &self.edges[node] {
                into[*to] -= 1;
                if into[*to] == 0 {
                    free.push(*to);
                }
            }
        }
        let mut before = vec![usize::MAX; into.len()];
        for (from, edges) in self.edges.iter().enumerate().filter(|(from, _)| into[*from] > 0) {
            edges.iter().for_each(|(to, _)| before[*to] = from);
        }
        let mut at = into.iter().position(|count| *count > 0)?;
        // Each has one before it that is left too: after so many steps back this is on a circle.
        for _ in 0..into.len() {
            at = before[at];
        }
        Some(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_and_nothing_else() {
        let mut graph = Graph::new(6);
        graph.add(0, Edge::Append, 1);
        graph.add(1, Edge::Read, 2);
        graph.add(0, Edge::Time, 2);
        graph.add(2, Edge::Append, 2);
        graph.add(4, Edge::Append, 5);
        assert_eq!(graph.circle(), None);
        graph.add(2, Edge::Unseen, 3);
        graph.add(3, Edge::Append, 1);
        graph.add(3, Edge::Append, 4);
        let mut circle = graph.circle().unwrap();
        circle.sort_unstable();
        assert_eq!(circle, [(1, Edge::Read), (2, Edge::Unseen), (3, Edge::Append)]);
    }

    #[test]
    fn skew_alone_is_cut() {
        let mut graph = Graph::new(3);
        graph.add(0, Edge::Unseen, 1);
        graph.add(1, Edge::Unseen, 0);
        assert!(graph.circle().is_some() && graph.without_skew().circle().is_none());
        graph.add(1, Edge::Append, 0);
        assert_eq!(graph.without_skew().circle().map(|circle| circle.len()), Some(2));
    }
}
