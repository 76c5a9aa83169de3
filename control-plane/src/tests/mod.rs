mod contract;
mod etcd;
mod faulty;
mod presence;
